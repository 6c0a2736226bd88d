package vk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Measures behaviour that the specification of VK_NVX_binary_import leaves open. A launch
// that fails loses the device, so scripts/gpu-run.sh cubin runs each question in its own
// process, by VKATTN_CUBIN_PROBE: "shared BYTES", "resident BYTES CTAS", "sm_80 BYTES",
// "validation" or "lost BYTES".
func TestCubinProbe(t *testing.T) {
	probe := os.Getenv("VKATTN_CUBIN_PROBE")
	if probe == "" {
		t.Skip("VKATTN_CUBIN_PROBE names no question")
	}
	name, rest, _ := strings.Cut(probe, " ")
	var bytes, ctas uint32
	_, _ = fmt.Sscan(rest, &bytes, &ctas)
	o := Options{PipelineCache: "off"}
	if name == "validation" {
		o.Validation, o.SyncValidation = true, true
		o.OnMessage = func(m Message) { t.Logf("PROBE validation message: %v", m) }
	}
	d, err := Open(o)
	if err != nil {
		t.Logf("PROBE %s: no device: %v", probe, err)
		t.FailNow()
	}
	defer func() { t.Logf("PROBE %s: closed: %v", probe, d.Close()) }()
	if !d.Caps().BinaryImport {
		t.Skipf("PROBE %s: %s has no VK_NVX_binary_import", probe, d.Info().Name)
	}
	p := prober{t: t, d: d}
	switch name {
	case "shared":
		err = p.launch("sm_90a", "probe_shared", 264, bytes)
	case "sm_80":
		err = p.launch("sm_80", "probe_shared", 264, bytes)
	case "resident":
		err = p.launch("sm_90a", "probe_resident", ctas, bytes)
	case "validation":
		err = p.launch("sm_90a", "probe_shared", 264, 32768)
	case "lost":
		err = p.launch("sm_90a", "probe_shared", 264, bytes)
		t.Logf("PROBE %s: %v; lost %v", probe, err, d.Lost())
		_, again := d.NewStream("after")
		t.Logf("PROBE %s: a new stream: %v", probe, again)
		other, again := Open(Options{PipelineCache: "off"})
		t.Logf("PROBE %s: a second device in this process: %v", probe, again)
		if again == nil {
			q := prober{t: t, d: other}
			t.Logf("PROBE %s: a launch on it: %v", probe, q.launch("sm_90a", "probe_shared", 264, 16384))
			t.Logf("PROBE %s: closed: %v", probe, other.Close())
		}
		if !errors.Is(err, ErrDeviceLost) {
			t.Logf("PROBE %s: the device was expected to be lost", probe)
		}
		return
	default:
		t.Fatalf("VKATTN_CUBIN_PROBE=%s", probe)
	}
	t.Logf("PROBE %s: out %v, error %v", probe, p.out, err)
	require.NoError(t, err)
	require.Equal(t, p.want, p.out)
}

type prober struct {
	t         *testing.T
	d         *Device
	out, want [2]uint32
}

// launch runs a kernel of testdata/probe.cu without the limit of shared memory.
func (p *prober) launch(architecture, name string, ctas, shared uint32) error {
	cubin, err := os.ReadFile("testdata/probe." + architecture + ".cubin")
	if err != nil {
		return err
	}
	d := p.d
	s, err := d.NewStream(name)
	if err != nil {
		return err
	}
	defer s.Close()
	m, err := d.NewCubin(architecture, cubin)
	if err != nil {
		return err
	}
	defer m.Close()
	f, err := m.Function(name)
	if err != nil {
		return err
	}
	defer f.Close()
	p.t.Logf("PROBE %s: %d bytes reserved, %d requested, the limit of a workgroup is %d", name, f.kernel.shared, shared, d.Caps().Limits.MaxSharedBytes)
	f.kernel.shared = 0
	d.info.Caps.Limits.MaxSharedBytes = 1 << 20
	b, err := d.NewBuffer(64, BufferOptions{})
	if err != nil {
		return err
	}
	defer b.Close()
	params := binary.LittleEndian.AppendUint64(nil, b.Address())
	params = binary.LittleEndian.AppendUint32(params, shared/4)
	if err := errors.Join(s.Fill(BufferRange{Buffer: b}, 0), s.Barrier()); err != nil {
		return err
	}
	begin, err := s.Timestamp()
	if err != nil {
		return err
	}
	if err := s.Launch(f, CubinLaunch{Grid: [3]uint32{ctas, 1, 1}, Block: [3]uint32{256, 1, 1}, SharedBytes: shared}, params, b); err != nil {
		return err
	}
	end, err := s.Timestamp()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	got := make([]byte, 8)
	if err := s.Download(ctx, got, b, 0); err != nil {
		return err
	}
	p.out = [2]uint32{binary.LittleEndian.Uint32(got), binary.LittleEndian.Uint32(got[4:])}
	p.want = [2]uint32{ctas, 0}
	if name == "probe_resident" {
		p.want[1] = ctas
	}
	took, err := s.Elapsed(begin, end)
	p.t.Logf("PROBE %s: %v on the device (%v)", name, took, err)
	return nil
}

// The probes fit their kernels: a mistake would show only on a GPU.
func TestCubinProbesDescribeTheirKernels(t *testing.T) {
	for _, architecture := range []string{"sm_90a", "sm_80"} {
		cubin := readFile(t, "testdata/probe."+architecture+".cubin")
		kernels, err := parseCubin(cubin)
		require.NoError(t, err)
		for _, name := range []string{"probe_shared", "probe_resident"} {
			require.NotNil(t, kernels[name])
			require.Equal(t, []uint32{8, 4}, kernels[name].params)
			require.EqualValues(t, 1024, kernels[name].shared, "%s %s", architecture, name)
		}
	}
}
