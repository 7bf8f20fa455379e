"""Lays warplens.pth beside the packages of the wheel: WARPLENS=1 python script.py needs it."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithHook(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_file("warplens.pth", str(Path(self.build_lib) / "warplens.pth"))

    def find_package_modules(self, package, folder):
        modules = super().find_package_modules(package, folder)
        return [x for x in modules if x[:2] != ("warplens", "setup")]

    def get_outputs(self, include_bytecode=True):
        hook = [] if self.editable_mode else [str(Path(self.build_lib) / "warplens.pth")]
        return [*super().get_outputs(include_bytecode), *hook]


setup(cmdclass={"build_py": WithHook})
