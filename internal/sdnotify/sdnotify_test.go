package sdnotify

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/await"
)

// listen plays systemd.
func listen(t *testing.T, name string) chan string {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	got, ended := make(chan string, 100), make(chan struct{})
	go func() { // ends when conn is closed
		defer close(ended)
		for buffer := make([]byte, 4096); ; {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			got <- string(buffer[:n])
		}
	}()
	t.Cleanup(func() { conn.Close(); <-ended })
	return got
}

func TestStates(t *testing.T) {
	for _, socket := range []string{filepath.Join(t.TempDir(), "notify"),
		"@barque-test-" + filepath.Base(t.TempDir()) + time.Now().Format("150405.000000000")} {
		got := listen(t, socket)
		t.Setenv(variable, socket)
		n := Take(slog.New(slog.NewTextHandler(t.Output(), nil)))
		if os.Getenv(variable) != "" {
			t.Error("children see the socket")
		}
		if !slices.Contains(n.Environ(), variable+"="+socket) {
			t.Error("a successor does not see the socket")
		}
		started := make(chan struct{})
		go func() { n.Starting(t.Context()); close(started) }()
		want := func(message string) {
			t.Helper()
			if has := await.Value(t, message, got); has != message {
				t.Errorf("systemd got %q, want %q", has, message)
			}
		}
		want("EXTEND_TIMEOUT_USEC=60000000")
		n.Status("waits\nREADY=1")
		want("STATUS=waits READY=1")
		n.Ready("serves")
		await.Value(t, "the end of the start", started)
		want("READY=1\nSTATUS=serves")
		n.Reloading()
		if has := await.Value(t, "reloading", got); !strings.HasPrefix(has, "RELOADING=1\nMONOTONIC_USEC=") {
			t.Errorf("systemd got %q", has)
		}
		n.Stopping()
		want("STOPPING=1\nSTATUS=stopping")
		n.Ready("too late")
		n.Status("last")
		want("STATUS=last")
	}
}

// TestWithoutSystemd: nothing is reported, and nothing fails.
func TestWithoutSystemd(t *testing.T) {
	t.Setenv(variable, "")
	n := Take(slog.New(slog.DiscardHandler))
	if n != nil {
		t.Fatal("a notifier without a socket")
	}
	n.Starting(context.Background())
	n.Status("x")
	n.Ready("x")
	n.Reloading()
	n.Stopping()
	if len(n.Environ()) == 0 {
		t.Error("no environment")
	}
}

// TestNobodyListens: a socket that is gone costs a line in the log.
func TestNobodyListens(t *testing.T) {
	t.Setenv(variable, filepath.Join(t.TempDir(), "gone"))
	var log strings.Builder
	Take(slog.New(slog.NewTextHandler(&log, nil))).Ready("serves")
	if !strings.Contains(log.String(), "READY=1") {
		t.Errorf("the log has %q", log.String())
	}
}
