package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Init is an init system that runs a node as a service.
type Init interface {
	Name() string
	// File is the file of a role's service that an administrator owns, with its mode. Shipped is
	// one that a package has installed; empty without.
	File(role string) (path string, mode os.FileMode)
	Shipped(role string) string
	// Text is the content of File.
	Text(role, program, configDir string) string
	Enabled(ctx context.Context, role string) (bool, error)
	Enable(ctx context.Context, role string) error
	// Start begins to start the service. It does not wait.
	Start(ctx context.Context, role string) error
	State(ctx context.Context, role string) (State, error)
	// Stop stops the service, and returns when it has stopped. It is not started at boot any more.
	Stop(ctx context.Context, role string) error
	// Forget is called when the file of a service was removed.
	Forget(ctx context.Context, role string) error
	// Log is the command that shows the log of a service.
	Log(role string) string
	// StartCommand enables and starts a service.
	StartCommand(role string) string
}

// State is that of a service.
type State struct {
	// Active is set while the service runs or is about to. Serving is set when it has said so;
	// an init system that hears nothing of it leaves it unset.
	Active, Serving bool
	// Failed is set when it ended and is not started again.
	Failed bool
	// Restarts counts its ends since it was started.
	Restarts int
	// Text is the service's own word about itself.
	Text string
}

// ProgramError is the error of a program that has ended with another status than 0. It does not
// wrap an exec.ExitError: a command's own status is not that of a program which it runs.
type ProgramError struct {
	Command string
	Status  int
	Said    string
}

func (e *ProgramError) Error() string {
	return fmt.Sprintf("%s ends with status %d: %s", e.Command, e.Status, e.Said)
}

// Runner runs a program, and returns its output. The error has the output, too; it is a
// ProgramError if the program ran.
type Runner func(ctx context.Context, program string, args ...string) (string, error)

// Execute is the Runner of this machine.
func Execute(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		var ended *exec.ExitError
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case errors.As(err, &ended):
			return out.String(), &ProgramError{Command: strings.Join(cmd.Args, " "), Status: ended.ExitCode(),
				Said: strings.TrimSpace(errs.String() + out.String())}
		}
		return out.String(), fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return out.String(), nil
}

// The names of init systems.
const (
	SystemdName = "systemd"
	OpenRCName  = "openrc"
)

// Inits returns the init systems of a machine whose root directory is root; run runs their
// programs.
func Inits(root string, run Runner) []Init {
	return []Init{&systemd{root, run}, &openRC{root, run}}
}

// Choose returns the init system of a name, or without a name the one that runs.
func Choose(name, root string, run Runner) (Init, error) {
	marks := map[string]string{SystemdName: "run/systemd/system", OpenRCName: "run/openrc"}
	for _, i := range Inits(root, run) {
		if name == i.Name() {
			return i, nil
		}
		if _, err := os.Stat(filepath.Join(root, "/", marks[i.Name()])); name == "" && err == nil {
			return i, nil
		}
	}
	if name != "" {
		return nil, fmt.Errorf("--init %q: want systemd or openrc", name)
	}
	return nil, errors.New(
		"neither systemd nor OpenRC runs here (there is no /run/systemd/system and no /run/openrc): give --init with --no-start to prepare a machine that does not run yet, or run `barque server` by the program that starts services here")
}

// serviceName is the name of a role's service.
func serviceName(role string) string { return "barque-" + role }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// systemd is Init for systemd.
type systemd struct {
	root string
	run  Runner
}

func (s *systemd) Name() string { return SystemdName }

func (s *systemd) unit(role string) string { return serviceName(role) + ".service" }

func (s *systemd) File(role string) (string, os.FileMode) {
	return filepath.Join(s.root, "/etc/systemd/system", s.unit(role)), 0o600
}

func (s *systemd) Shipped(role string) string {
	for _, dir := range []string{"/usr/lib/systemd/system", "/lib/systemd/system"} {
		if path := filepath.Join(s.root, dir, s.unit(role)); exists(path) {
			return path
		}
	}
	return ""
}

func (s *systemd) Text(role, program, configDir string) string {
	return unitText(role, program, configDir)
}

// Enabled reads the link that `systemctl enable` makes, as a machine that does not run has it, too.
func (s *systemd) Enabled(_ context.Context, role string) (bool, error) {
	return exists(s.wanted(role)), nil
}

func (s *systemd) wanted(role string) string {
	return filepath.Join(s.root, "/etc/systemd/system/multi-user.target.wants", s.unit(role))
}

func (s *systemd) Enable(ctx context.Context, role string) error {
	if !s.runs() { // an image is prepared
		_, err := s.run(ctx, "systemctl", "--root="+filepath.Join(s.root, "/"), "enable", s.unit(role))
		return err
	}
	if _, err := s.run(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	_, err := s.run(ctx, "systemctl", "enable", s.unit(role))
	return err
}

func (s *systemd) runs() bool { return exists(filepath.Join(s.root, "/run/systemd/system")) }

func (s *systemd) Start(ctx context.Context, role string) error {
	if _, err := s.run(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	_, err := s.run(ctx, "systemctl", "start", "--no-block", s.unit(role))
	return err
}

func (s *systemd) State(ctx context.Context, role string) (state State, err error) {
	if !s.runs() {
		return state, nil
	}
	out, err := s.run(ctx, "systemctl", "show", "--property=ActiveState,StatusText,NRestarts", s.unit(role))
	if err != nil {
		return state, err
	}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "ActiveState":
			state.Active = value == "active" || value == "activating" || value == "reloading" || value == "deactivating"
			state.Serving, state.Failed = value == "active", value == "failed"
		case "StatusText":
			state.Text = value
		case "NRestarts":
			_, _ = fmt.Sscan(value, &state.Restarts) // 0 of an old systemd
		}
	}
	return state, nil
}

func (s *systemd) Stop(ctx context.Context, role string) error {
	if !s.runs() {
		return removeIfThere(s.wanted(role))
	}
	if _, err := s.run(ctx, "systemctl", "stop", s.unit(role)); err != nil {
		return err
	}
	_, err := s.run(ctx, "systemctl", "disable", s.unit(role))
	return errors.Join(err, removeIfThere(s.wanted(role))) // also where the unit's file is gone
}

func (s *systemd) Forget(ctx context.Context, role string) error {
	if !s.runs() {
		return nil
	}
	_, _ = s.run(ctx, "systemctl", "reset-failed", s.unit(role)) // it fails for one that is not loaded
	_, err := s.run(ctx, "systemctl", "daemon-reload")
	return err
}

func (s *systemd) Log(role string) string { return "journalctl -u " + serviceName(role) }

func (s *systemd) StartCommand(role string) string {
	return "systemctl daemon-reload && systemctl enable --now " + serviceName(role)
}

// openRC is Init for OpenRC.
type openRC struct {
	root string
	run  Runner
}

func (o *openRC) Name() string { return OpenRCName }

func (o *openRC) File(role string) (string, os.FileMode) {
	return filepath.Join(o.root, "/etc/init.d", serviceName(role)), 0o700
}

// Shipped is empty: where packages put scripts of OpenRC is where administrators do.
func (o *openRC) Shipped(string) string { return "" }

func (o *openRC) Text(role, program, configDir string) string {
	return scriptText(role, program, configDir)
}

func (o *openRC) Enabled(_ context.Context, role string) (bool, error) {
	return exists(o.wanted(role)), nil
}

func (o *openRC) wanted(role string) string {
	return filepath.Join(o.root, "/etc/runlevels/default", serviceName(role))
}

func (o *openRC) Enable(ctx context.Context, role string) error {
	_, err := o.run(ctx, "rc-update", "add", serviceName(role), "default")
	return err
}

func (o *openRC) Start(ctx context.Context, role string) error {
	_, err := o.run(ctx, "rc-service", serviceName(role), "start")
	return err
}

// State asks the service's supervisor, which does not know whether it serves.
func (o *openRC) State(ctx context.Context, role string) (State, error) {
	file, _ := o.File(role)
	if !exists(file) || !exists(filepath.Join(o.root, "/run/openrc")) {
		return State{}, nil
	}
	_, err := o.run(ctx, "rc-service", serviceName(role), "status")
	var ended *ProgramError
	switch {
	case err == nil:
		return State{Active: true}, nil
	case errors.As(err, &ended): // 3 is stopped, 32 crashed
		return State{Failed: ended.Status == 32}, nil
	}
	return State{}, err
}

func (o *openRC) Stop(ctx context.Context, role string) error {
	file, _ := o.File(role)
	if !exists(file) {
		return removeIfThere(o.wanted(role))
	}
	state, err := o.State(ctx, role)
	if err != nil {
		return err
	}
	if state.Active {
		if _, err := o.run(ctx, "rc-service", serviceName(role), "stop"); err != nil {
			return err
		}
	}
	return removeIfThere(o.wanted(role))
}

func (o *openRC) Forget(context.Context, string) error { return nil }

func (o *openRC) Log(role string) string { return "less /var/log/" + serviceName(role) + ".log" }

func (o *openRC) StartCommand(role string) string {
	return fmt.Sprintf("rc-update add %[1]s default && rc-service %[1]s start", serviceName(role))
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
