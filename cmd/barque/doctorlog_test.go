package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/barque/barque/cmd/barque/dev"
	"github.com/barque/barque/cmd/barque/node"
)

// TestDoctorReadsLogs: an error of the last hour is a finding; an older one, and what libraries
// call an error that is none, is told and is none.
func TestDoctorReadsLogs(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	text := ""
	for _, l := range []struct {
		ago  time.Duration
		rest string
	}{
		{3 * time.Hour, `level=ERROR msg="it was so"`},
		{2 * time.Minute, `level=INFO msg="an ERROR that is told of"`},
		{time.Minute, `level=ERROR msg="it is so"`},
		{time.Minute, `level=ERROR msg="Timeout or abort while handling" part=k8s logger=UnhandledError method=GET URI=/api/v1/pods auditID=x`},
		{time.Minute, `level=ERROR msg="Post-timeout activity" part=k8s logger=UnhandledError timeElapsed=1ms method=GET path=/api/v1/pods result=<nil>`},
		{time.Minute, `level=ERROR msg="Error proxying data from client to backend" part=k8s err="broken pipe"`},
		{time.Minute, `level=WARN msg="not that bad"`},
	} {
		text += fmt.Sprintf("time=%s %s\n", now.Add(-l.ago).Format("2006-01-02T15:04:05.000Z07:00"), l.rest)
	}
	e := &examination{Time: now, procedures: node.Services()}
	e.program(node.Diagnosis{Server: "s1", Files: map[string]string{"log.txt": text}})
	if len(e.Findings) != 1 || !strings.HasPrefix(e.Findings[0].Text, "server s1: it has logged 1 error in the last hour, the last one: ") ||
		!strings.Contains(e.Findings[0].Text, "it is so") || e.Findings[0].Mend != "journalctl -u barque-server -p err" {
		t.Errorf("findings %+v", e.Findings)
	}
	if len(e.Notes) != 3 || !strings.Contains(e.Notes[0], "1 error before the last hour") || !strings.Contains(e.Notes[1], "2 errors that are none: a client") || !strings.Contains(e.Notes[2], "1 error that is none: an exec") {
		t.Errorf("notes %q", e.Notes)
	}
	crashed := &examination{Time: now, procedures: node.Services()}
	crashed.program(node.Diagnosis{Server: "s1", Files: map[string]string{"log.txt": "panic: nil map\n"}})
	if len(crashed.Findings) != 1 {
		t.Errorf("of a panic is found %+v", crashed.Findings)
	}
	late := &examination{Time: now, procedures: node.Services()}
	late.program(node.Diagnosis{Server: "s1", Files: map[string]string{"log.txt": "time=" + now.Format(time.RFC3339Nano) +
		` level=ERROR msg="Post-timeout activity" part=k8s logger=UnhandledError timeElapsed=1ms method=GET path="/ result=<nil>" result="nil map\ngoroutine 7 [running]: x result=<nil>"` + "\n"}})
	if len(late.Findings) != 1 || len(late.Notes) != 0 {
		t.Errorf("of a panic after the time was over is found %+v, noted %q", late.Findings, late.Notes)
	}
}

// TestDoctorTellsOfAMachineOnce: what servers on one machine have in common is one finding, or one
// note; what each has of its own is told of each.
func TestDoctorTellsOfAMachineOnce(t *testing.T) {
	kernel := func(boot, load, forward string) string {
		return "== /proc/sys/kernel/random/boot_id\n" + boot + "\n\n== /proc/stat\ncpu 1\ncpu0 1\ncpu1 1\n\n== /proc/loadavg\n99.0 " + load + " 1.0 1/1 1\n\n" +
			"== /proc/meminfo\nMemTotal: 1000000 kB\nMemAvailable: 50000 kB\n\n== /proc/sys/net/ipv4/ip_forward\n" + forward + "\n\n"
	}
	checks := func(name string) string {
		data, err := json.Marshal([]map[string]any{{"name": "overlayfs", "ok": true}, {"name": name, "detail": "none", "remedy": "mend it"}})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	diagnosis := func(server, machine, check string) node.Diagnosis {
		return node.Diagnosis{Server: server, Files: map[string]string{"machine.txt": machine, "check.json": checks(check)}}
	}
	e := &examination{Time: time.Now(), procedures: node.Services(), servers: []node.Diagnosis{
		diagnosis("s1", kernel("b1", "8.4", "1"), "cgroups"), diagnosis("s2", kernel("b1", "8.6", "0"), "cgroups"), diagnosis("s3", kernel("b1", "8.6", "1"), "other"),
		diagnosis("s4", kernel("b2", "7.9", "1"), "cgroups"), diagnosis("s5", kernel("open boot_id: no such file", "1.0", "1"), "cgroups"), diagnosis("s6", kernel("open boot_id: no such file", "1.0", "1"), "cgroups"),
	}}
	e.diagnose()
	var got []string
	for _, f := range e.Findings {
		got = append(got, f.On+"> "+f.Text+" > "+f.Mend)
	}
	for _, want := range []string{
		"s1> servers s1, s2 and s3, on one machine: 48 MiB of 976 MiB of memory are available > free -m",
		"s4> server s4: 48 MiB of 976 MiB of memory are available > free -m",
		"s5> server s5: 48 MiB of 976 MiB of memory are available > free -m",
		"s6> server s6: 48 MiB of 976 MiB of memory are available > free -m",
		"s2> server s2: the kernel forwards no packets, so pods reach nothing > sysctl -w net.ipv4.ip_forward=1",
		"s1> servers s1 and s2, on one machine: cgroups: none > mend it",
		"s3> server s3: other: none > mend it",
		"s4> server s4: cgroups: none > mend it", "s5> server s5: cgroups: none > mend it", "s6> server s6: cgroups: none > mend it",
	} {
		i := slices.Index(got, want)
		if i < 0 {
			t.Errorf("not found: %s", want)
			continue
		}
		got = slices.Delete(got, i, i+1)
	}
	if len(got) > 0 {
		t.Errorf("found, too: %q", got)
	}
	if want := []string{"servers s1, s2 and s3, on one machine: the load of the last five minutes is 8 on 2 CPUs"}; !slices.Equal(e.Notes, want) {
		t.Errorf("notes %q, want %q", e.Notes, want)
	}
}

// TestDoctorCountsWrites: that one write in a hundred is slow is said of some hundreds of writes.
func TestDoctorCountsWrites(t *testing.T) {
	for writes, findings := range map[int]int{106: 0, 256: 1} {
		e := &examination{Status: &node.ClusterStatus{Members: []node.MemberStatus{{Name: "s1", Store: &node.StoreStatus{DiskP99Seconds: 0.3, DiskWrites: writes}}}}}
		if e.diagnose(); len(e.Findings) != findings {
			t.Errorf("of %d writes: %+v", writes, e.Findings)
		}
	}
}

// TestDoctorThatCannotSay: what it finds is not lost in silence.
func TestDoctorThatCannotSay(t *testing.T) {
	full := writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC })
	for _, e := range []*examination{{}, {Findings: []node.Warning{{Text: "x"}}}} {
		if err := e.write(full, screen{}); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%v", err)
		}
	}
}

// TestMendsOfADevCluster: they are dev commands, for the state that the node is in, and run here.
func TestMendsOfADevCluster(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	t.Setenv("SUDO_UID", "")
	state := &dev.Status{Nodes: []dev.NodeStatus{{Name: "s1", Role: dev.Server, State: dev.Running}, {Name: "s2", Role: dev.Server, State: dev.Paused},
		{Name: "s3", Role: dev.Server, State: dev.Dead}, {Name: "a1", Role: dev.Agent, State: dev.Dead}}}
	p := devProcedures(here+"/c", state)
	cut := devProcedures(here+"/c", &dev.Status{Nodes: state.Nodes[:1], Partitioned: true})
	unknown := devProcedures(here+"/c", nil)
	for what, c := range map[string]struct{ got, want string }{
		"running":           {p.Look("s1", "server"), "tail -n 100 c/s1.log"},
		"paused":            {p.Look("s2", "server"), "dev resume s2 --dir c"},
		"dead":              {p.Look("s3", "server"), "dev start s3 --dir c"},
		"a dead agent":      {p.Look("a1", "agent"), "dev start a1 --dir c"},
		"no such node":      {p.Look("s9", "server"), "dev status --dir c"},
		"cut off":           {cut.Look("s1", "server"), "dev heal --dir c"},
		"not known":         {unknown.Look("s1", "server"), "dev status --dir c"},
		"the others":        {p.Start, "dev start s3 --dir c"},
		"the others, too":   {p.Start, "dev resume s2 --dir c; "},
		"all run, and cut":  {cut.Start, "dev heal --dir c"},
		"who is not known":  {unknown.Start, "dev start NODE --dir c"},
		"recover":           {p.Recover, "--inspect --data-dir c/s1 --data-dir c/s2 --data-dir c/s3"},
		"a new server":      {p.JoinAnew("s3"), "dev start --wipe s3 --dir c"},
		"in its network":    {p.From("s1", "ping 10.0.0.1"), "dev exec s1 --dir c -- ping 10.0.0.1"},
		"the errors":        {p.Errors("s1"), "grep level=ERROR c/s1.log"},
		"all, where it ran": {p.Any, "dev status --dir c"},
	} {
		if !strings.Contains(c.got, c.want) || strings.Contains(c.got, "systemctl") || strings.Contains(c.got, "journalctl") {
			t.Errorf("%s: %q, want %q", what, c.got, c.want)
		}
	}
	e := &examination{procedures: p}
	e.warn([]string{"s1"}, p.Errors("s1"), "x")
	if e.Findings[0].On != "" {
		t.Errorf("a dev command is to be run on %s", e.Findings[0].On)
	}
}
