requirements.txt: pyproject.toml
