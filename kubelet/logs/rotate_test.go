package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// one container that writes to path.
type one struct {
	path   string
	refuse bool
}

func (o *one) ListContainers(context.Context, map[string]string) ([]*runtimeapi.Container, error) {
	return []*runtimeapi.Container{{Id: "c", State: runtimeapi.ContainerState_CONTAINER_RUNNING}}, nil
}

func (o *one) ContainerStatus(context.Context, string) (*runtimeapi.ContainerStatus, error) {
	return &runtimeapi.ContainerStatus{Id: "c", LogPath: o.path}, nil
}

func (o *one) ReopenContainerLog(context.Context, string) error {
	if o.refuse {
		return errors.New("away")
	}
	return os.WriteFile(o.path, nil, 0o600)
}

func TestRotate(t *testing.T) {
	container := &one{path: filepath.Join(t.TempDir(), "0.log")}
	now := time.Unix(0, 0)
	r := New(Config{Runtime: container, MaxSize: 10, MaxFiles: 3, Logger: slog.New(slog.DiscardHandler),
		Now: func() time.Time { now = now.Add(time.Second); return now }})
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(container.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := r.Rotate(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	write("short")
	if older, _ := olderLogs(container.path); len(older) != 0 {
		t.Errorf("rotated too soon: %v", older)
	}
	for _, text := range []string{"the first one", "the second one", "the third one", "the fourth one"} {
		write(text)
	}
	older, err := olderLogs(container.path)
	if err != nil || len(older) != 2 || !strings.HasSuffix(older[0], compressed) ||
		strings.HasSuffix(older[1], compressed) {
		t.Fatalf("older files: %v %v", older, err)
	}
	f, err := os.Open(older[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(zip); err != nil || string(got) != "the third one" {
		t.Errorf("compressed: %q %v", got, err)
	}
	if got, err := os.ReadFile(older[1]); err != nil || string(got) != "the fourth one" {
		t.Errorf("newest of the older: %q %v", got, err)
	}

	// A runtime that does not reopen goes on writing to the file that it has.
	container.refuse = true
	if err := os.WriteFile(container.path, []byte("the fifth one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Rotate(context.Background()); err == nil {
		t.Error("the failure is not told")
	}
	if got, err := os.ReadFile(container.path); err != nil || string(got) != "the fifth one" {
		t.Errorf("the log: %q %v", got, err)
	}
}

// TestLogThatIsNotThere: the end of a kubelet in the middle of a rotation loses no log.
func TestLogThatIsNotThere(t *testing.T) {
	container := &one{path: filepath.Join(t.TempDir(), "0.log")}
	r := New(Config{Runtime: container, Logger: slog.New(slog.DiscardHandler)})
	if err := r.Rotate(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(container.path); err != nil {
		t.Errorf("the runtime was not told to open the log anew: %v", err)
	}
	if err := os.Remove(container.path); err != nil {
		t.Fatal(err)
	}
	container.refuse = true
	if err := r.Rotate(context.Background()); err == nil {
		t.Error("a runtime that refuses is no error")
	}
}
