#!/usr/bin/env bash
# Makes an environment for each peer that benchmarks are run beside: tests/benchmarks/peers.sh FOLDER
# Then: PEERS=FOLDER make benchmark
# BENCH_SIDES, BENCH_ROUNDS, BENCH_SECONDS, BENCH_THREADS ... choose: see sides/contest.py
set -euo pipefail
folder="${1:?name a folder}"
make_env() { # NAME PACKAGE...
    "${PYTHON:-python3}" -m venv "$folder/$1"
    "$folder/$1/bin/python" -m pip install --quiet "${@:2}"
}
make_env rectools "rectools[torch]==0.19.0" torch==2.13.0 "pyarrow<21"
make_env replay replay-rec==0.22.0 torch==2.13.0 lightning
# RecBole leaves the versions open: with these it trains. Its thop needs distutils, which setuptools has.
make_env recbole recbole==1.2.1 torch==2.13.0 "numpy<2" "pandas<3" setuptools
