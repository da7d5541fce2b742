package doctor

import (
	"errors"
	"syscall"
	"testing"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/terminal"
)

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestDoctorThatCannotSay: what it finds is not lost in silence.
func TestDoctorThatCannotSay(t *testing.T) {
	full := writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC })
	for _, e := range []*Examination{{}, {Examination: clusterstatus.Examination{Findings: []clusterstatus.Warning{{Text: "x"}}}}} {
		if err := e.Write(full, terminal.Screen{}); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%v", err)
		}
	}
}
