package doctor

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/ask"
	"github.com/barque/barque/clusterstatus/examination"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/internal/terminal"
	"github.com/barque/barque/internal/unpack"
)

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestDoctorThatCannotSay: what it finds is not lost in silence.
func TestDoctorThatCannotSay(t *testing.T) {
	full := writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC })
	for _, e := range []*Examination{{},
		{Examination: examination.Examination{Findings: []clusterstatus.Warning{{Text: "x"}}}}} {
		if err := e.Write(full, terminal.Screen{}); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%v", err)
		}
	}
}

// TestExitCodes: a healthy cluster of which something is found counts as degraded.
func TestExitCodes(t *testing.T) {
	found := []clusterstatus.Warning{{Text: "x"}}
	status := func(h clusterstatus.ClusterHealth) *clusterstatus.ClusterStatus {
		return &clusterstatus.ClusterStatus{Health: h}
	}
	for name, c := range map[string]struct {
		e    examination.Examination
		code int // 0: no error
	}{
		"healthy": {examination.Examination{Status: status(clusterstatus.Healthy)}, 0},
		"something is found": {examination.Examination{Status: status(clusterstatus.Healthy), Findings: found},
			exitcode.Degraded},
		"degraded": {examination.Examination{Status: status(clusterstatus.Degraded), Findings: found},
			exitcode.Degraded},
		"without a quorum": {examination.Examination{Status: status(clusterstatus.NoQuorum), Findings: found},
			exitcode.NoQuorum},
		"nobody has answered": {examination.Examination{Findings: found}, exitcode.NoAnswer},
	} {
		err := (&Examination{Examination: c.e}).Err()
		code := 0
		var coded *exitcode.Error
		if errors.As(err, &coded) {
			code = coded.Code
		}
		if code != c.code || (err != nil) != (c.code != 0) || err != nil && err.Error() != "" {
			t.Errorf("%s: exit code %d, want %d: %v", name, code, c.code, err)
		}
	}
}

// TestExamineWithoutAnAnswer: a cluster that does not answer is a finding. The archive has what
// this machine tells.
func TestExamineWithoutAnAnswer(t *testing.T) {
	dir := t.TempDir()
	dead := "https://127.0.0.1:1"
	asks := &ask.Asker{
		Config:     func() (*rest.Config, error) { return &rest.Config{Host: dead}, nil },
		Kubeconfig: func() (string, error) { return "", errors.New("none") },
		Servers:    []string{dead}, DataDir: dir, Timeout: await.Hang,
	}
	var said []string
	file := filepath.Join(dir, "d.tar.gz")
	looked := false
	e, err := Examine(t.Context(), asks, Options{
		Machine: func() []check.Finding {
			looked = true
			return nil
		},
		File: file, Tell: func(text string) { said = append(said, text) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Findings) == 0 || !strings.Contains(e.Findings[0].Text, dead) || e.File != file || !looked ||
		len(said) > 0 {
		t.Errorf("findings %+v, file %q, machine %t; it said %q", e.Findings, e.File, looked, said)
	}
	files := unpack.TarGz(t, file)
	if !slices.ContainsFunc(slices.Collect(maps.Keys(files)),
		func(name string) bool { return strings.Contains(name, "this-machine/") }) {
		t.Errorf("the archive has %v", slices.Sorted(maps.Keys(files)))
	}
}
