#!/bin/sh
# What trial.py needs, without the shipped networks, in the folder .bundle that git does not look at.
set -e
cd "$(dirname "$0")"
rm -rf .bundle && mkdir -p .bundle && echo '*' > .bundle/.gitignore
tar c --exclude=__pycache__ --exclude='*.safetensors' src benchmarks trial.py | tar x -C .bundle
du -sh .bundle
