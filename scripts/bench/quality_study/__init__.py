"""The quality study: what a plan costs in loss, on runs branched from common checkpoints."""
