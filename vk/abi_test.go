package vk

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var abiFiles = []string{"abi.h", "abi_enums.h", "abi_device.h", "abi_memory.h", "abi_pipeline.h"}

var (
	cComment = regexp.MustCompile(`(?s)/\*.*?\*/`)
	cStruct  = regexp.MustCompile(`(?s)typedef struct (\w+) \{(.*?)\n\} \w+;`)
	cUnion   = regexp.MustCompile(`(?s)union \{.*?\} (\w+);`)
	cEnum    = regexp.MustCompile(`\b(VK_\w+) = `)
	cIndex   = regexp.MustCompile(`\[.*?\]`)
	// Members that stand for several of the real ones.
	grouped = regexp.MustCompile(`^(others|images|granularities|descriptors|graphics|copyAlignments)\d?$`)
)

// abiFacts is a C program that prints sizes, offsets and numbers, those in have
// only when it is not nil.
func abiFacts(t *testing.T, include string, have func(string) bool) string {
	var src strings.Builder
	for _, f := range abiFiles {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		src.Write(b)
	}
	text := cComment.ReplaceAllString(src.String(), "")
	var out strings.Builder
	// The second macro is goki's: without it a stretch of its header is left out.
	fmt.Fprintf(&out, "#define VK_NO_PROTOTYPES\n#define GO_INCLUDE_NV_ray_tracing\n#include <stddef.h>\n#include <stdio.h>\n#include \"%s\"\nint main(void)\n{\n", include)
	for _, m := range cStruct.FindAllStringSubmatch(text, -1) {
		name, body := m[1], m[2]
		if !have(name) {
			continue
		}
		fmt.Fprintf(&out, "printf(\"%s %%zu\\n\", sizeof(%s));\n", name, name)
		var fields []string
		if strings.Contains(body, "VKA_HEAD") {
			fields = append(fields, "sType", "pNext")
			body = strings.Replace(body, "VKA_HEAD", "", 1)
		}
		body = cUnion.ReplaceAllString(body, "int $1;")
		for _, decl := range strings.Split(body, ";") {
			for _, part := range strings.Split(strings.TrimSpace(decl), ",") {
				if words := strings.Fields(cIndex.ReplaceAllString(part, "")); len(words) > 0 {
					fields = append(fields, strings.TrimLeft(words[len(words)-1], "*"))
				}
			}
		}
		for _, f := range fields {
			if !grouped.MatchString(f) {
				fmt.Fprintf(&out, "printf(\"%s.%s %%zu\\n\", offsetof(%s, %s));\n", name, f, name, f)
			}
		}
	}
	for _, m := range cEnum.FindAllStringSubmatch(text, -1) {
		if have(m[1]) {
			fmt.Fprintf(&out, "printf(\"%s %%lld\\n\", (long long)%s);\n", m[1], m[1])
		}
	}
	return out.String() + "return 0;\n}\n"
}

// Compares our declarations with the headers that come with goki/vulkan (1.3.239),
// and with newer ones where VKATTN_VULKAN_HEADERS names their include folder.
func TestABIMatchesVulkanHeaders(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	headers := os.Getenv("VKATTN_VULKAN_HEADERS")
	if headers == "" {
		dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/goki/vulkan").Output()
		if err != nil {
			t.Skipf("go list: %v", err)
		}
		headers = strings.TrimSpace(string(dir))
	}
	core, err := os.ReadFile(filepath.Join(headers, "vulkan", "vulkan_core.h"))
	require.NoError(t, err)
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^typedef struct (\w+) \{|^ +(VK_\w+) =`).FindAllStringSubmatch(cComment.ReplaceAllString(string(core), ""), -1) {
		known[m[1]+m[2]] = true
	}
	have := func(name string) bool { return known[name] }
	here, err := os.Getwd()
	require.NoError(t, err)
	run := func(include, folder string) []string {
		dir := t.TempDir()
		file, bin := filepath.Join(dir, "facts.c"), filepath.Join(dir, "facts")
		require.NoError(t, os.WriteFile(file, []byte(abiFacts(t, include, have)), 0o644))
		out, err := exec.Command(cc, "-I", folder, "-o", bin, file).CombinedOutput()
		require.NoError(t, err, "%s", out)
		out, err = exec.Command(bin).Output()
		require.NoError(t, err)
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	ours, theirs := run("abi.h", here), run("vulkan/vulkan_core.h", headers)
	require.Equal(t, len(theirs), len(ours))
	for i := range ours {
		assert.Equal(t, theirs[i], ours[i])
	}
	t.Logf("%d facts", len(ours))
	assert.Greater(t, len(ours), 400)
}
