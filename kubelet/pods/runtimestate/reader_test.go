package runtimestate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
)

// logLine is a line of a container's log as the runtime writes it; P marks one that goes on.
func logLine(tag, text string) string {
	return "2026-01-02T03:04:05.678901234Z stdout " + tag + " " + text + "\n"
}

func TestTerminationMessage(t *testing.T) {
	var numbered, last80 strings.Builder
	for i := range 100 {
		numbered.WriteString(logLine("F", fmt.Sprint(i)))
		if i >= 20 {
			fmt.Fprintln(&last80, i)
		}
	}
	digits := strings.Repeat("0123456789", 1700)
	for _, c := range []struct {
		name      string
		log, file string
		fallback  bool
		exit      int32
		message   string // of the runtime
		want      string
	}{
		{"a last line without an end", logLine("P", "DONE"), "", true, 1, "", "DONE"},
		{"lines", logLine("F", "one") + logLine("F", "") + logLine("F", "two"), "", true, 1, "", "one\n\ntwo\n"},
		{"a line in parts", logLine("P", "a") + logLine("P", "b") + logLine("F", "c"), "", true, 1, "", "abc\n"},
		{"at most 80 lines", numbered.String(), "", true, 1, "", last80.String()},
		{"at most 2048 bytes", logLine("P", digits), "", true, 1, "", digits[len(digits)-2048:]},
		{"the log is for failures", logLine("F", "x"), "", true, 0, "", ""},
		{"and for those who want it", logLine("F", "x"), "", false, 1, "", ""},
		{"the file comes first", logLine("F", "x"), "said", true, 1, "", "said"},
		{"the last 4096 bytes of the file", "", digits, true, 0, "", digits[len(digits)-4096:]},
		{"the runtime's word before it", "", "said", true, 128, "cannot start", "cannot start: said"},
		{"the runtime's word alone", "", "", false, 128, "cannot start", "cannot start"},
	} {
		dir := t.TempDir()
		write := func(name, text string) string {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		s := &runtimeapi.ContainerStatus{Id: "c", ExitCode: c.exit, Message: c.message, LogPath: write("log", c.log),
			Annotations: map[string]string{cri.AnnotationTerminationFile: write("file", c.file)}}
		if c.fallback {
			s.Annotations[cri.AnnotationTerminationPolicy] = string(v1.TerminationMessageFallbackToLogsOnError)
		}
		if got := NewReader(nil, "u", nil).terminationMessage(t.Context(), s); got != c.want {
			t.Errorf("%s: %d bytes %q, want %d bytes %q", c.name, len(got), clip(got), len(c.want), clip(c.want))
		}
	}
}

func clip(s string) string { return s[:min(len(s), 60)] }
