package shutdown

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
)

// privateBus starts a D-Bus daemon of the test's own, and returns how to connect to it.
func privateBus(t *testing.T) func(...dbus.ConnOption) (*dbus.Conn, error) {
	t.Helper()
	program := needs.Program(t, "dbus-daemon", "that logind is asked as it understands")
	dir, err := os.MkdirTemp("", "barque-bus-") // short: a socket's path has to be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	address := "unix:path=" + filepath.Join(dir, "bus")
	config := filepath.Join(dir, "bus.conf")
	const policy = `<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy>`
	if err := os.WriteFile(config,
		[]byte("<busconfig><listen>"+address+"</listen><auth>EXTERNAL</auth>"+policy+"</busconfig>"),
		0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.CommandContext(t.Context(), program, "--config-file="+config, "--nofork", "--nopidfile")
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill() // it may have ended
		_ = daemon.Wait()         // with the signal
	})
	open := func(opts ...dbus.ConnOption) (*dbus.Conn, error) { return dbus.Connect(address, opts...) }
	var first *dbus.Conn
	await.True(t, "the bus answers", func() bool { first, err = open(); return err == nil })
	t.Cleanup(func() { first.Close() })
	return open
}

// login is systemd with its login manager, as far as kubelets see it.
type login struct {
	conn *dbus.Conn

	mu        sync.Mutex
	preparing bool
	micros    uint64
	asked     []string
	ends      []*os.File
	conf      string // the drop-in, read upon SIGHUP
}

func (l *login) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.preparing {
		return 0, dbus.NewError("org.freedesktop.login1.OperationInProgress", []any{"already running"})
	}
	l.asked = append(l.asked, strings.Join([]string{what, who, mode}, " "))
	l.ends = append(l.ends, r, w)
	return dbus.UnixFD(w.Fd()), nil
}

func (l *login) Get(of, name string) (dbus.Variant, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case of == "org.freedesktop.login1.Manager" && name == "PreparingForShutdown":
		return dbus.MakeVariant(l.preparing), nil
	case of == "org.freedesktop.login1.Manager" && name == "InhibitDelayMaxUSec":
		return dbus.MakeVariant(l.micros), nil
	}
	return dbus.Variant{}, dbus.MakeFailedError(errors.New("no such property"))
}

func (l *login) KillUnit(unit, whom string, signal int32) *dbus.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	raw, err := os.ReadFile(l.conf)
	if err != nil {
		return dbus.MakeFailedError(err)
	}
	if unit == "systemd-logind.service" && whom == "all" && signal == 1 &&
		strings.Contains(string(raw), "\n[Login]\nInhibitDelayMaxSec=91\n") {
		l.micros = 91_000_000
	}
	return nil
}

func TestLogind(t *testing.T) {
	open := privateBus(t)
	dir := filepath.Join(t.TempDir(), "logind.conf.d")
	service, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	l := &login{conn: service, micros: 5_000_000, conf: filepath.Join(dir, "99-kubelet.conf")}
	for _, each := range []struct{ path, inter string }{
		{"/org/freedesktop/login1", "org.freedesktop.login1.Manager"},
		{"/org/freedesktop/login1", "org.freedesktop.DBus.Properties"},
		{"/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"}} {
		if err := service.Export(l, dbus.ObjectPath(each.path), each.inter); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"org.freedesktop.login1", "org.freedesktop.systemd1"} {
		if reply, err := service.RequestName(name, dbus.NameFlagDoNotQueue); err != nil ||
			reply != dbus.RequestNameReplyPrimaryOwner {
			t.Fatal(reply, err)
		}
	}

	ctx := await.Context(t)
	b, err := connect(ctx, dir, open)
	if err != nil {
		t.Fatal(err)
	}
	if is, err := b.Preparing(ctx); err != nil || is {
		t.Errorf("preparing: %v %v", is, err)
	}
	if d, err := b.LongestDelay(ctx); err != nil || d != 5*time.Second {
		t.Errorf("it waits for %s: %v", d, err)
	}
	if err := b.SetLongestDelay(ctx, 90*time.Second+time.Millisecond); err != nil {
		t.Error(err)
	}
	if d, err := b.LongestDelay(ctx); err != nil || d != 91*time.Second {
		t.Errorf("it waits for %s: %v", d, err)
	}
	lock, err := b.Inhibit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if want := "shutdown kubelet delay"; len(l.asked) != 1 || l.asked[0] != want {
		t.Errorf("asked for %q, want %q", l.asked, want)
	}
	l.ends[1].Close() // its own copy
	released := make(chan error, 1)
	go func() { _, err := l.ends[0].Read(make([]byte, 1)); released <- err }()
	select {
	case err := <-released:
		t.Errorf("the lock was given back: %v", err)
	default:
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
	await.Value(t, "the lock is given back", released)

	l.mu.Lock()
	l.preparing = true
	l.mu.Unlock()
	if err := service.Emit("/org/freedesktop/login1", "org.freedesktop.login1.Manager.PrepareForShutdown",
		true); err != nil {
		t.Fatal(err)
	}
	await.Value(t, "a hint", b.Hints())
	if is, err := b.Preparing(ctx); err != nil || !is {
		t.Errorf("preparing: %v %v", is, err)
	}
	if lock, err := b.Inhibit(ctx); err == nil {
		t.Error("a lock while the machine goes down", lock.Close())
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	for range b.Hints() { // there may be one of a name that was taken
	}
	l.ends[0].Close()
}

func TestWithoutLogind(t *testing.T) {
	open := privateBus(t)
	b, err := connect(await.Context(t), t.TempDir(), open)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Preparing(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "read PreparingForShutdown of logind") {
		t.Errorf("%v", err)
	}
}
