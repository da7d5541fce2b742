package shutdown

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/barque/barque/internal/atomicfile"
)

// Logind is the interface to systemd's login manager.
type Logind interface {
	// Preparing reports whether the machine goes down.
	Preparing(ctx context.Context) (bool, error)
	// Inhibit takes a lock that delays a shutdown until the file is closed, but no longer than
	// LongestDelay. It fails while a shutdown is being prepared.
	Inhibit(ctx context.Context) (*os.File, error)
	LongestDelay(ctx context.Context) (time.Duration, error)
	// SetLongestDelay changes logind's configuration. It takes effect soon after.
	SetLongestDelay(ctx context.Context, d time.Duration) error
	// Hints gets a value when Preparing may have changed. It is closed with the connection.
	Hints() <-chan struct{}
	Close() error
}

const (
	loginName      = "org.freedesktop.login1"
	loginPath      = dbus.ObjectPath("/org/freedesktop/login1")
	loginInterface = loginName + ".Manager"

	systemdName      = "org.freedesktop.systemd1"
	systemdPath      = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdInterface = systemdName + ".Manager"

	// dropIns is logind's directory of drop-ins, and dropIn the one of kubelets.
	dropIns = "/etc/systemd/logind.conf.d"
	dropIn  = "99-kubelet.conf"
)

// bus is logind over D-Bus.
type bus struct {
	conn    *dbus.Conn
	cancel  context.CancelCauseFunc
	dropIns string
	hints   chan struct{}
}

// SystemBus connects to logind over the system's bus.
func SystemBus(ctx context.Context) (Logind, error) {
	return connect(ctx, dropIns, systemBus)
}

var systemBus = dbus.ConnectSystemBus

func connect(ctx context.Context, dropIns string, open func(...dbus.ConnOption) (*dbus.Conn, error)) (*bus, error) {
	ctx, cancel := context.WithCancelCause(ctx) // the connection ends with it
	impatient := time.AfterFunc(patience, func() { cancel(fmt.Errorf("D-Bus has not answered for %s", patience)) })
	conn, err := open(dbus.WithContext(ctx))
	impatient.Stop()
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("connect to D-Bus: %w", err)
	}
	b := &bus{conn: conn, cancel: cancel, dropIns: dropIns, hints: make(chan struct{}, 1)}
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	go b.hint(signals) // ends with the connection
	err = conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(loginName), dbus.WithMatchObjectPath(loginPath),
		dbus.WithMatchInterface(loginInterface), dbus.WithMatchMember("PrepareForShutdown"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow logind's signals: %w", err), b.Close())
	}
	return b, nil
}

// hint merges signals. Any sender may cause them: they only make the manager read Preparing.
func (b *bus) hint(signals <-chan *dbus.Signal) {
	for range signals {
		select {
		case b.hints <- struct{}{}:
		default:
		}
	}
	close(b.hints)
}

func (b *bus) Hints() <-chan struct{} { return b.hints }

func (b *bus) Close() error {
	defer b.cancel(nil)
	return b.conn.Close()
}

// patience bounds a call, as in D-Bus' own clients.
const patience = 25 * time.Second

// call asks one of systemd's services.
func (b *bus) call(ctx context.Context, name string, path dbus.ObjectPath, method string, args ...any) *dbus.Call {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s has not answered for %s", name, patience))
	defer cancel()
	return b.conn.Object(name, path).CallWithContext(ctx, method, 0, args...)
}

// property reads one of logind's properties.
func (b *bus) property(ctx context.Context, name string, into any) error {
	var value dbus.Variant
	err := b.call(ctx, loginName, loginPath, "org.freedesktop.DBus.Properties.Get", loginInterface, name).Store(&value)
	if err == nil {
		err = value.Store(into)
	}
	if err != nil {
		return fmt.Errorf("read %s of logind: %w", name, err)
	}
	return nil
}

func (b *bus) Preparing(ctx context.Context) (is bool, err error) {
	err = b.property(ctx, "PreparingForShutdown", &is)
	return is, err
}

func (b *bus) LongestDelay(ctx context.Context) (time.Duration, error) {
	var micros uint64
	err := b.property(ctx, "InhibitDelayMaxUSec", &micros)
	return time.Duration(min(micros, uint64(1<<62)/1000)) * time.Microsecond, err
}

func (b *bus) Inhibit(ctx context.Context) (*os.File, error) {
	var fd dbus.UnixFD
	err := b.call(ctx, loginName, loginPath, loginInterface+".Inhibit",
		"shutdown", "kubelet", "The node ends its pods before the machine goes down", "delay").Store(&fd)
	if err != nil {
		return nil, fmt.Errorf("take an inhibitor lock of logind: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibitor lock"), nil
}

func (b *bus) SetLongestDelay(ctx context.Context, d time.Duration) error {
	path := filepath.Join(b.dropIns, dropIn)
	if err := os.MkdirAll(b.dropIns, 0o755); err != nil { // others read it: atomicfile would close it to them
		return fmt.Errorf("have logind wait for pods: %w", err)
	}
	seconds := (d + time.Second - 1) / time.Second
	content := fmt.Sprintf(
		written+": so long logind waits for pods, by shutdownGracePeriod.\n[Login]\nInhibitDelayMaxSec=%d\n",
		seconds)
	if err := atomicfile.Write(path, []byte(content), 0o644); err != nil {
		return fmt.Errorf("have logind wait for pods: %w", err)
	}
	return b.reload(ctx)
}

// reload makes logind read its configuration.
func (b *bus) reload(ctx context.Context) error {
	const hangUp = int32(1)
	if err := b.call(ctx, systemdName, systemdPath, systemdInterface+".KillUnit", "systemd-logind.service", "all",
		hangUp).Err; err != nil {
		return fmt.Errorf("have logind read %s: %w", filepath.Join(b.dropIns, dropIn), err)
	}
	return nil
}
