package main

import (
	"os"
	"testing"

	"vkattn/internal/hostmem"
	"vkattn/vk"
)

func TestEnvironmentOfNoSenseIsBadInput(t *testing.T) {
	_, run := goodFiles(t)
	notBool := []string{"banana", "true", "2", " 1"}
	for name, c := range map[string]struct {
		word   string
		values []string
	}{
		vk.ValidationEnv: {"want 1, 0 or nothing", notBool},
		hostmem.Variable: {"want bytes, such as 8GiB", []string{"banana", "-1", "1.5GiB", "8GB"}},
	} {
		for _, value := range c.values {
			for _, command := range [][]string{run, {"info"}, {"version"}, {"bench", "--device", "cpu"}} {
				t.Run(name+"="+value+" "+command[0], func(t *testing.T) {
					t.Setenv(name, value)
					refused(t, exitInput, "vkattn: "+name+" is ", command...)
					refused(t, exitInput, c.word, command...)
				})
			}
		}
	}
	for _, value := range []string{"", "0"} {
		t.Setenv(vk.ValidationEnv, value)
		succeeds(t, run...)
	}
}

func TestValidationWithoutADeviceIsRefused(t *testing.T) {
	dir, run := goodFiles(t)
	small := []string{"--device", "cpu", "--nheads", "1", "--seqlen", "8", "--headdim", "8"}
	for _, c := range []struct {
		says string
		args []string
	}{
		{"--validation needs a Vulkan device", append(run, "--validation")},
		{"--validation needs a Vulkan device", append(with(with(run, "--device", "auto"), "--tier", "cpu"), "--validation")},
		{"--validation needs a Vulkan device", append([]string{"bench", "--validation"}, small...)},
		{"--validation needs a Vulkan device", append([]string{"verify", "--validation"}, small...)},
		{"--validation: info opens no device", []string{"info", "--validation"}},
		{"--validation: version opens no device", []string{"version", "--validation"}},
		{"--validation: compare opens no device", []string{"compare", "old.json", "new.json", "--validation"}},
		{"--validation: report opens no device", []string{"report", "rows.json", "--validation"}},
	} {
		refused(t, exitInput, c.says, c.args...)
	}
	if os.Getenv("VKATTN_DRIVER") == "none" {
		refused(t, exitUnsupported, "--validation needs a Vulkan device", append(with(run, "--device", "auto"), "--validation")...)
	}
	nothingWritten(t, dir)
}
