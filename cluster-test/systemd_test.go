package clustertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/barque/barque/cluster-test/machines"
	"github.com/barque/barque/internal/needs"
)

// TestUnderSystemd runs a server as a service, with the unit that examples has and that `cluster
// join` writes.
func TestUnderSystemd(t *testing.T) {
	if _, err := os.Stat(machines.SystemdProgram); err != nil {
		needs.Missing(t, "systemd (the package systemd)", "Barque as a service of systemd")
	}
	unit, err := os.ReadFile("../examples/barque-server.service")
	if err != nil {
		t.Fatal(err)
	}
	t.Parallel()
	d := newDrill(t)
	s := service{d, d.machine("s1", "10.0.0.1", 0, "")}
	address := s.m.Address().String()
	s.run("ip addr flush dev eth0")
	systemd, err := s.m.Systemd()
	if err != nil {
		t.Fatal(err)
	}
	d.running[s.m] = systemd
	s.until("systemctl is-active basic.target", "active")
	for name, text := range map[string]string{
		"barque-server.service": string(unit),
		// There is no journal.
		"barque-server.service.d/output.conf": "[Service]\nStandardOutput=append:/var/log/barque\nStandardError=append:/var/log/barque\n",
	} {
		if err := s.m.WriteUnit(name, text); err != nil {
			t.Fatal(err)
		}
	}
	s.run("systemctl daemon-reload")
	s.arguments("--snapshot-unsealed --eviction-hard=memory.available<100Mi") // however full this machine's disk is

	d.stage("a start waits for an address", func() {
		s.run("systemctl start --no-block barque-server")
		s.until("systemctl show -P StatusText barque-server", "waiting for an address of this machine")
		s.shows("ActiveState", "activating")
		d.must(s.m.SetAddress(network(address)))
		s.run("systemctl start barque-server") // joins the start that waits
		s.run("barque kubectl get --raw /readyz")
		s.shows("StatusText", "serves on "+address)
	})
	d.stage("a restart returns when the server serves, and leaves pods alone", func() {
		s.run("barque kubectl run hello --image=barque.local/hello:1")
		s.run("barque kubectl wait --for=condition=Ready pod/hello --timeout=2m")
		before := s.hello()
		s.run("systemctl restart barque-server")
		s.run("barque kubectl get --raw /readyz")
		s.run("systemctl stop barque-server")
		s.run("pgrep -x hello")
		s.run("systemctl start barque-server")
		if after := s.hello(); after != before {
			d.Errorf("the pod's container is %q, it was %q", after, before)
		}
	})
	d.stage("no number of failures is too many", func() {
		const failures = 7 // systemd gives up after five within ten seconds, unless a unit says otherwise
		s.shows("StartLimitIntervalUSec", "0")
		for i := range failures {
			s.until("systemctl show -P SubState barque-server", "start", "running")
			s.run("systemctl kill --signal=KILL --kill-who=main barque-server")
			s.until("systemctl show -P NRestarts barque-server", fmt.Sprint(i+1))
		}
		s.run("systemctl start barque-server")
		s.run("barque kubectl get --raw /readyz")
	})
	d.stage("pods do not take the server's time", func() {
		s.shows("ControlGroup", "/barque-server.service") // beside /barque, of the pods
		s.shows("CPUWeight", "2000")
	})
	d.stage("wrong arguments are not tried again", func() {
		s.arguments("--no-such-flag")
		if s.try("systemctl restart barque-server").Error == nil {
			d.Error("a restart with wrong arguments succeeds")
		}
		s.until("systemctl show -P ActiveState barque-server", "failed") // and not "activating"
		s.shows("ExecMainStatus", "2")
	})
}

// service is a server on a machine with systemd.
type service struct {
	*drill
	m *machines.Machine
}

// arguments sets those of the server.
func (s service) arguments(args string) {
	s.Helper()
	s.must(os.WriteFile(s.m.Path("/etc/barque/server.env"), []byte("BARQUE_ARGS="+args+"\n"), 0o644))
}

// try runs a command on the machine.
func (s service) try(command string) machines.Result {
	ctx, cancel := context.WithTimeout(s.Context(), commandTimeout)
	defer cancel()
	return s.m.Run(ctx, "", command)
}

// run is try for a command that must succeed. It returns the output.
func (s service) run(command string) string {
	s.Helper()
	r := s.try(command)
	if r.Error != nil {
		log := Tail(s.m.Path("/var/log/barque"), 50)
		s.Fatalf("%v\nthe server's last words:\n%s", r.Error, log)
	}
	return strings.TrimSpace(r.Out)
}

// until waits until the output of a command contains one of some texts.
func (s service) until(command string, texts ...string) {
	s.Helper()
	err := Poll(s.Context(), deadline, func(ctx context.Context) error {
		r := s.m.Run(ctx, "", command)
		if r.Error != nil {
			return r.Error
		}
		if !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(r.Out, text) }) {
			return errors.New("it prints " + r.Out)
		}
		return nil
	})
	if err != nil {
		s.Fatalf("%s: want one of %q: %v", command, texts, err)
	}
}

// shows wants a property of the service.
func (s service) shows(property, want string) {
	s.Helper()
	if got := s.run("systemctl show -P " + property + " barque-server"); !strings.Contains(got, want) {
		s.Errorf("%s is %q, want %q", property, got, want)
	}
}

// hello names the pod's container and its restarts.
func (s service) hello() string {
	s.Helper()
	return s.run(
		"barque kubectl get pod hello -o jsonpath='{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}'")
}
