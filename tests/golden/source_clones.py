"""Python files of clones as modules. What they import of compiled modules is replaced by empty
classes."""

import importlib.abc
import importlib.machinery
import io
import subprocess
import sys
import tarfile
import types

STUBBED = [
    "transformer_engine", "transformer_engine_extensions", "deepspeed", "megatron",
    "msamp_adamw", "msamp_arithmetic", "apex", "msamp_quantize",
    "msamp.operators.dist_op", "amp_C", "qoptim_cuda", "omegaconf", "torchao",
]  # fmt: skip


class StubMeta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = StubMeta(name, (), {})
        setattr(cls, name, made)
        return made


class StubModule(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = StubMeta(name, (), {})
        setattr(self, name, made)
        return made


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if any(name == stubbed or name.startswith(stubbed + ".") for stubbed in STUBBED):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StubModule(spec.name)

    def exec_module(self, module):
        pass


def git(repository, *arguments):
    return subprocess.run(
        ["git", "-C", repository, *arguments], check=True, capture_output=True
    ).stdout


def text_of(repository, path):
    return git(repository, "show", f"HEAD:{path}").decode()


def load(name, repository, path):
    """One file as a module of that name."""
    module = types.ModuleType(name)
    module.__package__ = name.rpartition(".")[0]
    module.__file__ = path
    sys.modules[name] = module
    exec(compile(text_of(repository, path), path, "exec"), module.__dict__)
    return module


def unpack(repository, folder, *paths):
    data = git(repository, "archive", "HEAD", *paths)
    tarfile.open(fileobj=io.BytesIO(data)).extractall(folder, filter="data")
