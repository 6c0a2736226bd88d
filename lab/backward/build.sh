#!/usr/bin/env bash
# Compiles the shaders to spv/.
set -euo pipefail
cd "$(dirname "$0")"
glslc=${GLSLC:-$(ls ~/.cache/vkattn/deps/bin/glslc)}
val=${SPIRV_VAL:-$(ls ~/.cache/vkattn/deps/bin/spirv-val)}
for k in delta dkdv dkdv_rolled dq dq_add; do
  for t in f16 bf16; do
    d=(); [[ $t == bf16 ]] && d=(-DDTYPE_BF16); [[ $k == *_rolled ]] && d+=(-DROLLED)
    "$glslc" -O0 -fshader-stage=compute --target-env=vulkan1.3 --target-spv=spv1.6 "${d[@]}" ${k%_rolled}.comp -o spv/${k}_$t.spv
    "$val" --target-env vulkan1.3 spv/${k}_$t.spv
  done
done

# The library's kernels; BACKWARD is the folder of the includes that are not here yet.
for k in kv q; do
  for t in f16 bf16; do
    for nv2 in 0 1; do
      name=p$k; [[ $nv2 == 0 ]] && name+=k
      "$glslc" -O0 -fshader-stage=compute --target-env=vulkan1.3 --target-spv=spv1.6 -DNV2=$nv2 -DBDA=0 -DGENERAL=1 -DDTYPE_${t^^} \
        ${BACKWARD:+-I$BACKWARD} ../../shaders/backward_coopmat_$k.comp -o spv/${name}_$t.spv
      "$val" --target-env vulkan1.3 spv/${name}_$t.spv
    done
  done
done
