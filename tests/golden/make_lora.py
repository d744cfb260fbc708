#!/usr/bin/env python3
"""Fixtures of adapters from peft: adapters of the models of make_models.py, whose B is not zero,
one batch, its loss and logits, and the gradients of all A and B.

Writes, next to this script, for each of tiny-llama and tiny-gpt2 a folder lora/NAME with
  adapter_config.json, adapter_model.safetensors   as peft saves them
  expected.safetensors   tokens and targets [B, T] (int32), logits [T, V] of the first sequence in
                         fp32, merged.NAME (weights of peft's merge_and_unload that it changes),
                         grad.NAME of each tensor of the adapters
  expected.json          loss in fp32

Needs torch, transformers, peft and safetensors; neither the build nor the tests do.
"""
import json
import pathlib

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
TARGETS = {"tiny-llama": ["q_proj", "v_proj", "gate_proj", "down_proj"], "tiny-gpt2": ["c_attn"]}


def make(name):
    torch.manual_seed(5)
    folder = HERE / "lora" / name
    base = AutoModelForCausalLM.from_pretrained(HERE / name, attn_implementation="eager").float()
    before = {key: value.clone() for key, value in base.state_dict().items()}
    config = LoraConfig(
        r=4,
        lora_alpha=12,
        target_modules=TARGETS[name],
        task_type="CAUSAL_LM",
        fan_in_fan_out=name == "tiny-gpt2",
    )
    model = get_peft_model(base, config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                parameter.copy_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = f"tests/golden/{name}"
    settings["target_modules"] = sorted(settings["target_modules"])
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    batch = load_file(HERE / name / "expected.safetensors")
    tokens, targets = batch["tokens"], batch["targets"]
    logits = model(tokens.long()).logits
    loss = torch.nn.functional.cross_entropy(
        logits.view(-1, logits.shape[-1]), targets.long().view(-1)
    )
    loss.backward()
    tensors = {"tokens": tokens, "targets": targets, "logits": logits[0].detach().contiguous()}
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            tensors["grad." + key.replace(".default", "")] = parameter.grad.clone().contiguous()
    merged = model.merge_and_unload().state_dict()
    for key, value in merged.items():
        if not torch.equal(value, before[key]):
            tensors["merged." + key] = value.contiguous()
    save_file(tensors, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(dict(loss=loss.item()), indent=1) + "\n")
    print(name, loss.item(), sorted(tensors))


if __name__ == "__main__":
    make("tiny-llama")
    make("tiny-gpt2")
