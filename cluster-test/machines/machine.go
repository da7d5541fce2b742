package machines

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Machine is one machine, switched on or off. Its methods may be called by several goroutines.
//
//	NewMachine ──▶ on ──Off──▶ off ──On──▶ on
//	                            └─ NewDisk
type Machine struct {
	Name string

	lab       *Lab
	segment   *Segment
	dir       string
	megabytes int // of the disk, 0: a directory
	card      net.HardwareAddr

	mu      sync.Mutex
	address netip.Prefix
	init    *exec.Cmd    // nil when it is off
	power   io.Closer    // its end switches the machine off
	port    netlink.Link // of the switch
}

// NewMachine makes a machine with an empty disk, and switches it on. A disk of a size is a file
// system of its own; of size 0 it is a directory.
func (l *Lab) NewMachine(name string, address netip.Prefix, diskMegabytes int) (*Machine, error) {
	return l.home.NewMachine(name, address, diskMegabytes)
}

// NewMachine is that of the lab, for a machine in this segment.
func (s *Segment) NewMachine(name string, address netip.Prefix, diskMegabytes int) (*Machine, error) {
	l := s.lab
	m := &Machine{Name: name, lab: l, segment: s, dir: filepath.Join(l.dir, name), megabytes: diskMegabytes,
		address: address, card: net.HardwareAddr{2, 0, 0, 0, 0, 0}} // 2: locally administered
	// never fails
	rand.Read(m.card[1:])
	if err := os.MkdirAll(filepath.Join(m.dir, "home"), 0o755); err != nil {
		return nil, err
	}
	if err := m.NewDisk(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.machines = append(l.machines, m)
	l.mu.Unlock()
	return m, m.On()
}

func (m *Machine) disk() string { return filepath.Join(m.dir, "disk") }

// NewDisk exchanges the disk of a machine that is off for an empty one.
func (m *Machine) NewDisk() error {
	if m.pid() != 0 {
		return fmt.Errorf("%s is on", m.Name)
	}
	if err := os.RemoveAll(m.disk()); err != nil {
		return err
	}
	if m.megabytes == 0 {
		return os.Mkdir(m.disk(), 0o755)
	}
	f, err := os.Create(m.disk())
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(int64(m.megabytes)<<20), f.Close()); err != nil {
		return err
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", "-m", "0", m.disk()).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	return nil
}

// pid is that of process 1, as it is seen from outside; 0 when the machine is off.
func (m *Machine) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.init == nil {
		return 0
	}
	return m.init.Process.Pid
}

// On switches the machine on. It has its disk and its home, and nothing runs.
func (m *Machine) On() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.init != nil {
		return fmt.Errorf("%s is on", m.Name)
	}
	if err := m.boot(); err != nil {
		return fmt.Errorf("switch %s on: %w", m.Name, err)
	}
	var err error
	if m.port, err = m.segment.plug(m.init.Process.Pid, m.card, m.address); err != nil {
		return errors.Join(fmt.Errorf("switch %s on: %w", m.Name, err), m.halt())
	}
	return nil
}

func (m *Machine) boot() error {
	text, err := json.Marshal(
		setup{Name: m.Name, Disk: m.disk(), Image: m.megabytes > 0, Home: filepath.Join(m.dir, "home"),
			Binary: m.lab.binary})
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), initVariable+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Setsid: true}
	var complaint strings.Builder
	cmd.Stderr = &complaint
	power, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	said, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	m.init, m.power = cmd, power
	if line, _ := bufio.NewReader(said).ReadString('\n'); line != "ready\n" {
		err := m.halt()
		return fmt.Errorf("it says %q: %s: %w", line, strings.TrimSpace(complaint.String()),
			errors.Join(err, errors.New("it is not ready")))
	}
	return nil
}

// Off switches the machine off: all of its processes are killed at once.
func (m *Machine) Off() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.init == nil {
		return nil
	}
	return m.halt()
}

func (m *Machine) halt() error {
	err := m.init.Process.Kill()
	var ended *exec.ExitError
	if waited := m.init.Wait(); waited != nil && !errors.As(waited, &ended) {
		err = errors.Join(err, waited)
	}
	err = errors.Join(err, m.lab.unplug(m.port), sweepCgroups(m.CgroupRoot()))
	m.init, m.power, m.port = nil, nil, nil
	return err
}

// CgroupRoot is the one below which the pods of the machine are to run. It is removed when the
// machine is switched off.
func (m *Machine) CgroupRoot() string { return "/" + filepath.Base(m.lab.dir) + "-" + m.Name }

// SetAddress gives the machine another address, now or when it is switched on.
func (m *Machine) SetAddress(address netip.Prefix) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.address = address
	if m.init == nil {
		return nil
	}
	return readdress(m.init.Process.Pid, address, m.segment.gateway.Addr())
}

// Address is where the others reach it.
func (m *Machine) Address() netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.address.Addr()
}

// Path returns where this process finds a file of a machine that is on.
func (m *Machine) Path(file string) string { return fmt.Sprintf("/proc/%d/root%s", m.pid(), file) }

// Log is the file with the output of Serve.
func (m *Machine) Log() string { return filepath.Join(m.dir, "log") }

// enter takes this thread into the machine.
func (m *Machine) enter() error {
	pid := m.pid()
	if pid == 0 {
		return fmt.Errorf("%s is off", m.Name)
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	// The mounts come last: after them /proc is the machine's.
	for _, ns := range []struct {
		file string
		kind int
	}{{"net", unix.CLONE_NEWNET}, {"uts", unix.CLONE_NEWUTS}, {"ipc", unix.CLONE_NEWIPC}, {"pid", unix.CLONE_NEWPID},
		{"mnt", unix.CLONE_NEWNS}} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, ns.file))
		if err != nil {
			return err
		}
		err = unix.Setns(int(f.Fd()), ns.kind)
		f.Close()
		if err != nil {
			return fmt.Errorf("enter the %s namespace of %s: %w", ns.file, m.Name, err)
		}
	}
	return nil
}
