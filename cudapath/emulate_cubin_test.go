package cudapath

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// chunkProgram prints the tile of each kernel: byte, row and column of each chunk of 16
// bytes, in the order of threads.
const chunkProgram = `
#define __host__
#define __device__
#include <cstdio>
#include "cubin_chunks.h"
template <int N> struct Tile { static constexpr int BN = N, LOADERS = 64, K_PANEL = 128 * N; };
template <int BN, int PANELS> void print() {
	using Mine = Chunks<Tile<BN>, PANELS>;
	for (int thread = 0; thread < 64; thread++) {
		Mine mine(thread);
		for (int i = 0; i < Mine::COUNT; i++)
			printf("%d %d %u %d %d\n", BN, PANELS, mine.at(i), mine.first + i * Mine::STEP, mine.column);
	}
}
int main() { print<80, 1>(); print<32, 2>(); }
`

// Each chunk of a tile is copied by one thread, to where wgmma expects it: panels of 64
// columns, rows of 128 bytes, and in the address bits 4 to 6 changed by bits 7 to 9.
func TestCubinChunksFillTheSwizzledTile(t *testing.T) {
	compiler, err := exec.LookPath("c++")
	if err != nil {
		t.Skipf("no compiler for the kernels: %v", err)
	}
	dir := t.TempDir()
	source, program := filepath.Join(dir, "chunks.cc"), filepath.Join(dir, "chunks")
	require.NoError(t, os.WriteFile(source, []byte(chunkProgram), 0o600))
	text, err := exec.Command(compiler, "-std=c++17", "-Ikernels", "-o", program, source).CombinedOutput()
	require.NoError(t, err, "%s", text)
	out, err := exec.Command(program).Output()
	require.NoError(t, err)
	seen := map[[3]int]bool{}
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		var keys, panels, at, row, column int
		_, err := fmt.Sscan(lines.Text(), &keys, &panels, &at, &row, &column)
		require.NoError(t, err)
		linear := column/8*keys*128 + row*128 + column%8*16
		require.Equal(t, linear^(linear>>7&7)<<4, at, lines.Text())
		require.Less(t, row, keys)
		require.Less(t, column, 8*panels)
		seen[[3]int{keys, panels, at}] = true
	}
	assert.Len(t, seen, 80*8+32*16, "chunks")
}

// The launch table says what the cubins say, and every kernel fits a launch from Vulkan.
func TestCubinTable(t *testing.T) {
	table, err := embedded()
	require.NoError(t, err)
	require.Len(t, table.cubins, 12)
	for _, dtype := range []string{"f16", "bf16"} {
		for _, causal := range []bool{false, true} {
			for d, want := range map[int]int{8: 64, 64: 64, 72: 96, 96: 96, 104: 128, 128: 128} {
				k := table.cubin(dtype, d, d, causal)
				require.NotNil(t, k)
				require.Equal(t, want, k.D)
				image, err := table.cubinImage(k)
				require.NoError(t, err)
				require.Contains(t, string(image), k.Entry)
				require.LessOrEqual(t, k.Shared, 48000)
			}
			require.Nil(t, table.cubin(dtype, 136, 136, causal))
			require.Nil(t, table.cubin(dtype, 36, 36, causal))
		}
	}
	require.Nil(t, table.cubin("f32", 64, 64, false))
	var p cubinParams
	require.Len(t, p.bytes(), 184)
	for _, k := range table.kernels {
		require.NotEqual(t, cubinFamily, k.Family, "CUDA does not choose it")
	}
}
