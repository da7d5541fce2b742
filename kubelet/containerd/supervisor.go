package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"google.golang.org/grpc"
	"gopkg.in/natefinch/lumberjack.v2"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/bundle"
)

const (
	stopTimeout  = 10 * time.Second // from SIGTERM to SIGKILL
	startTimeout = 60 * time.Second // until CRI answers; a slow disk may need it
	// shimLoadTimeout bounds a shim's answer after containerd's start. Then containerd kills the
	// shim's containers, so that a shim that a busy machine does not let run loses them. Its
	// default is 5 s.
	shimLoadTimeout = 45 * time.Second
	// startAtMost bounds every start. containerd asks as many shims at a time as there are CPUs.
	startAtMost  = 5 * time.Minute
	probeEvery   = 20 * time.Millisecond  // while waiting for CRI to answer
	backOffMin   = 250 * time.Millisecond // first pause before a restart
	backOffMax   = 10 * time.Second
	backOffReset = time.Minute // a life this long starts the back-off anew
)

// Config configures a Supervisor. The zero value of every field but DataDir is usable.
type Config struct {
	// DataDir is the node's data directory; containerd uses DataDir/containerd.
	DataDir string
	// RegistryDir holds registry mirrors and credentials in the layout of
	// containerd's certs.d (a folder per registry with a hosts.toml in it).
	// Default DataDir/registries.
	RegistryDir string
	// CNIConfDir is where package network writes the CNI configuration.
	// Default DataDir/containerd/cni.
	CNIConfDir string
	// SandboxImage holds a pod's namespaces. Default bundle.PauseImage.
	SandboxImage string
	// Command starts containerd; the supervisor appends containerd's own flags.
	// Default: this binary with the argument "containerd", so cmd must route
	// that argument to Main.
	Command []string
	// Logger logs starts and ends. containerd's own log goes to DataDir/containerd/containerd.log.
	Logger *slog.Logger
}

// Supervisor keeps one containerd alive.
//
//	starting ──CRI answers, images imported──▶ ready
//	   ▲                                         │
//	   └───────── back-off ◀──child ended────────┘
//
// Only Run changes the state.
type Supervisor struct {
	config      Config
	layout      layout
	snapshotter string

	readyOnce sync.Once
	ready     chan struct{}

	mu   sync.Mutex
	down error // why containerd does not serve now; nil while it does
}

// errStarting is returned by Healthy before the first start has succeeded.
var errStarting = errors.New("containerd is starting")

// New checks the configuration. It touches nothing on the machine.
func New(config Config) (*Supervisor, error) {
	l, err := newLayout(config.DataDir)
	if err == nil {
		err = l.check()
	}
	if err != nil {
		return nil, err
	}
	if config.RegistryDir == "" {
		config.RegistryDir = l.registries()
	}
	if config.CNIConfDir == "" {
		config.CNIConfDir = l.cniConf()
	}
	if config.SandboxImage == "" {
		config.SandboxImage = bundle.PauseImage
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if len(config.Command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the barque binary: %w", err)
		}
		config.Command = []string{self, Command}
	}
	return &Supervisor{config: config, layout: l, ready: make(chan struct{}), down: errStarting}, nil
}

// Socket is the path of containerd's socket; CRI is served on it.
func (s *Supervisor) Socket() string { return s.layout.socket() }

// CNIConfDir is the directory that containerd watches for a CNI configuration.
func (s *Supervisor) CNIConfDir() string { return s.config.CNIConfDir }

// Ready is closed when containerd serves CRI for the first time and holds the built-in images. It
// stays closed; Healthy returns the present state.
func (s *Supervisor) Ready() <-chan struct{} { return s.ready }

// Healthy returns nil while containerd serves, and otherwise the reason.
func (s *Supervisor) Healthy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

func (s *Supervisor) setDown(why error) {
	s.mu.Lock()
	s.down = why
	s.mu.Unlock()
}

// Run keeps containerd running until ctx ends, then stops it in order. Pods
// stay. It returns an error only when it cannot prepare a start at all: the
// components are missing, or the data directory cannot be written.
func (s *Supervisor) Run(ctx context.Context) error {
	components, err := bundle.Open()
	if err != nil {
		return err
	}
	if err := s.prepare(ctx, components); err != nil {
		return fmt.Errorf("prepare containerd: %w", err)
	}
	pause := backOffMin
	for {
		started := time.Now()
		err := s.runOnce(ctx, components)
		s.setDown(fmt.Errorf("containerd is down: %w", err))
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(started) > backOffReset {
			pause = backOffMin
		}
		s.config.Logger.Error("containerd ended, starting it again", "err", err, "pause", pause, "log",
			s.layout.log())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, backOffMax)
	}
}

// prepare puts the files that a start needs into the data directory.
func (s *Supervisor) prepare(ctx context.Context, components *bundle.Bundle) error {
	l := s.layout
	h, err := detectHost(l.dataDir)
	if err != nil {
		return err
	}
	for _, dir := range []string{l.dir, s.config.CNIConfDir, s.config.RegistryDir, l.shimSockets()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := stopLeftover(ctx, l); err != nil {
		return err
	}
	s.recordEnds() // the next line may remove the state from which ends are recorded
	if err := forgetEarlierBoot(l); err != nil {
		return err
	}
	if err := components.Unpack(l.bin()); err != nil {
		return err
	}
	s.snapshotter = h.snapshotter()
	return writeConfig(l, s.config.RegistryDir, s.config.CNIConfDir, s.config.SandboxImage, h)
}

// runOnce is one life of containerd. It returns why that life ended.
func (s *Supervisor) runOnce(ctx context.Context, components *bundle.Bundle) error {
	logFile := &lumberjack.Logger{Filename: s.layout.log(), MaxSize: 16 /* MiB */, MaxBackups: 2}
	defer logFile.Close()
	last := newTail(4 << 10)
	before, err := listLeftovers(s.layout, s.config.CNIConfDir)
	if err != nil {
		return err
	}
	s.recordEnds()
	child, err := s.spawn(io.MultiWriter(logFile, last))
	if err != nil {
		return err
	}

	// Ended by cancel, which follows the child's end; waited for below.
	serving, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ready := make(chan error, 1)
	var sweeping sync.WaitGroup
	go func() { ready <- s.makeReady(serving, components, before) }()

	var ended error
	select {
	case ended = <-child.ended:
	case err := <-ready:
		ready <- nil // for the wait below
		if err != nil {
			child.signal(syscall.SIGTERM)
			ended = errors.Join(err, child.wait(stopTimeout))
			break
		}
		sweeping.Go(func() { s.keepSweeping(serving) }) // ends with serving
		select {
		case ended = <-child.ended:
		case <-ctx.Done():
			ended = child.stop()
		}
	case <-ctx.Done():
		ended = child.stop()
	}
	cancel(errors.New("containerd ended"))
	<-ready
	sweeping.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w; its last words: %s", ended, last)
}

// startLimit bounds containerd's start: each shim of an earlier one may take its time to answer.
func startLimit(l layout, cpus int) time.Duration {
	shims, _ := filepath.Glob(filepath.Join(l.state(), tasksPlugin, "*", "*")) // its one error is that of a pattern
	return min(startTimeout+time.Duration((len(shims)+cpus-1)/cpus)*shimLoadTimeout, startAtMost)
}

// makeReady waits until CRI answers, removes the half-made sandboxes of an earlier containerd,
// imports the images, and closes ready.
func (s *Supervisor) makeReady(ctx context.Context, components *bundle.Bundle, before leftovers) error {
	limit := startLimit(s.layout, runtime.GOMAXPROCS(0))
	ctx, cancel := context.WithTimeoutCause(ctx, limit,
		fmt.Errorf("no answer on %s within %v", s.layout.socket(), limit))
	defer cancel()
	began := time.Now()
	// gRPC waits a second after a refused connection; the socket appears sooner.
	if err := waitUntil(ctx, probeEvery,
		func() (bool, error) { return listening(s.layout.socket()), nil }); err != nil {
		return err
	}
	conn, err := client.New(s.layout.socket(), client.WithDefaultNamespace(criNamespace),
		client.WithTimeout(startTimeout))
	if err != nil {
		return err
	}
	defer conn.Close()
	channel, ok := conn.Conn().(grpc.ClientConnInterface)
	if !ok {
		return fmt.Errorf("containerd's client speaks %T, not gRPC", conn.Conn())
	}
	cri := runtimeapi.NewRuntimeServiceClient(channel)
	for {
		if _, err = cri.Version(ctx, &runtimeapi.VersionRequest{}); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(probeEvery):
		}
	}
	orphans, err := before.reap(ctx, s.layout, conn, cri)
	if err != nil {
		s.config.Logger.Warn(
			"cannot remove all that an earlier containerd left of pods; trying again at the next start", "err", err)
	}
	if orphans > 0 {
		s.config.Logger.Info("removed sandboxes that an earlier containerd left half made", "sandboxes", orphans)
	}
	if err := importImages(ctx, conn, components, s.snapshotter); err != nil {
		return err
	}
	if err := s.preload(context.WithoutCancel(ctx), conn); err != nil { // large images take longer than a start may
		s.config.Logger.Error("cannot import all images of the node's directory", "err", err)
	}
	s.setDown(nil)
	s.readyOnce.Do(func() { close(s.ready) })
	s.config.Logger.Info("containerd serves", "socket", s.layout.socket(), "after",
		time.Since(began).Round(time.Millisecond))
	return nil
}

func listening(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// child is a running containerd.
type child struct {
	process *os.Process
	ended   chan error // gets exactly one value, never nil
}

// spawn starts containerd. The kernel ends it (SIGTERM) when Barque dies in
// whatever way; that is bound to the thread that started it, so one goroutine
// keeps the thread for the child's whole life. That goroutine is the owner of
// the process and ends with it.
func (s *Supervisor) spawn(output io.Writer) (*child, error) {
	command := exec.Command(s.config.Command[0], append(s.config.Command[1:], "--config", s.layout.config())...)
	command.Dir = s.layout.dir
	command.Stdout, command.Stderr = output, output
	// The plugins and runc are found by their full paths; PATH is for mount helpers.
	command.Env = append(os.Environ(), "PATH="+s.layout.bin()+":"+os.Getenv("PATH"))
	command.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGTERM,
		Setpgid:   true, // a ^C at the terminal is for Barque, which then stops it in order
	}
	// Whatever a shim inherited must not keep Wait from returning.
	command.WaitDelay = time.Second

	c := &child{ended: make(chan error, 1)}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err != nil {
			return
		}
		err = command.Wait()
		if err == nil {
			err = errors.New("containerd ended by itself")
		}
		c.ended <- fmt.Errorf("containerd: %w", err)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(s.config.Command[0]), err)
	}
	c.process = command.Process
	return c, nil
}

func (c *child) signal(signal syscall.Signal) {
	// The one error, "already finished", shows in wait, too.
	_ = c.process.Signal(signal)
}

// stop ends the child in order.
func (c *child) stop() error {
	c.signal(syscall.SIGTERM)
	return c.wait(stopTimeout)
}

// wait returns how the child ended; after limit it is killed.
func (c *child) wait(limit time.Duration) error {
	select {
	case err := <-c.ended:
		return err
	case <-time.After(limit):
		c.signal(syscall.SIGKILL)
		return <-c.ended
	}
}
