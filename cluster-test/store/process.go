package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/cluster-test/store/member"
)

// ErrGone is returned when the member's process ended, or did not answer in time, after the request
// was sent: it may have been executed.
var ErrGone = errors.New("the member's process did not answer")

// ErrDown is returned when the member's process does not run: the request was not sent.
var ErrDown = errors.New("the member's process does not run")

// process is one run of a member.
type process struct {
	name   string
	cmd    *exec.Cmd
	client *rpc.Client
	exited chan struct{} // closed when it has ended
	state  *os.ProcessState
}

// startProcess runs this program as a member. It must run on the keeper's thread, which is the
// parent: see Pdeathsig. ended is called when the process has ended.
func startProcess(name, logFile string, ended func()) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	// By this name it is the program that runs, also when its file was replaced by a newer one.
	cmd := exec.Command("/proc/self/exe")
	cmd.Args[0] = "store-member-" + name
	cmd.Env = append(os.Environ(), member.Variable+"="+name)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{theirs}
	// A group of its own: Ctrl-C is for the driver, which stops the members in its order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("start member %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, client: rpc.NewClient(ours), exited: make(chan struct{})}
	go func() { // ends with the process
		cmd.Wait()
		p.state = cmd.ProcessState
		p.client.Close()
		ended()
		close(p.exited)
	}()
	return p, nil
}

func socketPair() (ours net.Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a control socket: %w", err)
	}
	f := os.NewFile(uintptr(fds[0]), "control")
	defer f.Close() // net.FileConn has a copy
	theirs = os.NewFile(uintptr(fds[1]), "control")
	if ours, err = net.FileConn(f); err != nil {
		theirs.Close()
	}
	return ours, theirs, err
}

// signal sends a signal to the process.
func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal member %s: %w", p.name, err)
	}
	return nil
}

// kill ends the process at once and waits for that.
func (p *process) kill() error {
	err := p.signal(syscall.SIGKILL)
	<-p.exited
	return err
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// call asks the member. ErrGone says that there is no answer.
func (p *process) call(ctx context.Context, method string, args, reply any) error {
	call := p.client.Go(member.Service+"."+method, args, reply, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
	case <-ctx.Done():
		return fmt.Errorf("%w: %s of member %s: %w", ErrGone, method, p.name, context.Cause(ctx))
	}
	var server rpc.ServerError
	if err := call.Error; errors.As(err, &server) {
		return fmt.Errorf("%s of member %s: %w", method, p.name, err)
	} else if err != nil {
		return fmt.Errorf("%w: %s of member %s: %w", ErrGone, method, p.name, err)
	}
	return nil
}

// remaining is the time that ctx leaves to the member itself.
func remaining(ctx context.Context) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		return max(time.Until(d), time.Millisecond)
	}
	return time.Minute
}
