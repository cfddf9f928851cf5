"""Chat templates by name, for models that come without one. Used only when a profile asks for one by its name."""

from __future__ import annotations

from typing import Final

_SYSTEM_IN_FIRST_USER: Final = """\
{%- set ns = namespace(system='') -%}
{%- for message in messages if message.role == 'system' -%}{%- set ns.system = message.content -%}{%- endfor -%}
"""

FALLBACKS: Final[dict[str, str]] = {
    "chatml": """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
""",
    "llama2": _SYSTEM_IN_FIRST_USER
    + """\
{%- for message in messages if message.role != 'system' -%}
{%- if message.role == 'user' -%}
{{- bos_token + '[INST] ' -}}
{%- if loop.first and ns.system -%}{{- '<<SYS>>\\n' + ns.system + '\\n<</SYS>>\\n\\n' -}}{%- endif -%}
{{- message.content | trim + ' [/INST]' -}}
{%- else -%}
{{- ' ' + message.content | trim + ' ' + eos_token -}}
{%- endif -%}
{%- endfor -%}
""",
    "llama3": """\
{{- bos_token -}}
{%- for message in messages -%}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
""",
    "mistral": _SYSTEM_IN_FIRST_USER
    + """\
{{- bos_token -}}
{%- for message in messages if message.role != 'system' -%}
{%- if message.role == 'user' -%}
{{- '[INST] ' -}}{%- if loop.last and ns.system -%}{{- ns.system + '\\n\\n' -}}{%- endif -%}
{{- message.content + ' [/INST]' -}}
{%- else -%}
{{- ' ' + message.content + eos_token -}}
{%- endif -%}
{%- endfor -%}
""",
    "gemma": _SYSTEM_IN_FIRST_USER
    + """\
{{- bos_token -}}
{%- for message in messages if message.role != 'system' -%}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' -}}
{%- if loop.first and ns.system -%}{{- ns.system | trim + '\\n\\n' -}}{%- endif -%}
{{- message.content | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
""",
    "phi3": """\
{%- for message in messages -%}
{{- '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
""",
    "zephyr": """\
{%- for message in messages -%}
{{- '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
""",
    "vicuna": """\
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{- message.content + '\\n\\n' -}}
{%- elif message.role == 'user' -%}{{- 'USER: ' + message.content + '\\n' -}}
{%- else -%}{{- 'ASSISTANT: ' + message.content + eos_token + '\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}
""",
    "alpaca": """\
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{- message.content + '\\n\\n' -}}
{%- elif message.role == 'user' -%}{{- '### Instruction:\\n' + message.content + '\\n\\n' -}}
{%- else -%}{{- '### Response:\\n' + message.content + eos_token + '\\n\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '### Response:\\n' -}}{%- endif -%}
""",
}
"""Name → source."""
