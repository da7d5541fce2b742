package examination

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/clusterstatus"
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
		{time.Minute,
			`level=ERROR msg="Timeout or abort while handling" part=k8s logger=UnhandledError method=GET URI=/api/v1/pods auditID=x`},
		{time.Minute,
			`level=ERROR msg="Post-timeout activity" part=k8s logger=UnhandledError timeElapsed=1ms method=GET path=/api/v1/pods result=<nil>`},
		{time.Minute, `level=ERROR msg="Error proxying data from client to backend" part=k8s err="broken pipe"`},
		{time.Minute,
			`level=ERROR msg="Failed to watch" part=k8s err="failed to list things: conversion webhook for x.org/v1, Kind=Thing failed: Post \"https://x\": refused"`},
		{time.Minute, `level=ERROR msg="error resolving default/noapi: service \\"noapi\\" not found" part=k8s`},
		{time.Minute, `level=WARN msg="not that bad"`},
	} {
		text += fmt.Sprintf("time=%s %s\n", now.Add(-l.ago).Format("2006-01-02T15:04:05.000Z07:00"), l.rest)
	}
	e := &Examination{Time: now, Procedures: clusterstatus.Services()}
	e.program(clusterstatus.Diagnosis{Server: "s1", Files: map[string]string{"log.txt": text}})
	if len(e.Findings) != 1 ||
		!strings.HasPrefix(e.Findings[0].Text, "server s1: it has logged 1 error in the last hour, the last one: ") ||
		!strings.Contains(e.Findings[0].Text, "it is so") ||
		e.Findings[0].Mend != "journalctl -u barque-server -p err" {
		t.Errorf("findings %+v", e.Findings)
	}
	if len(e.Notes) != 5 || !strings.Contains(e.Notes[0], "1 error before the last hour") ||
		!strings.Contains(e.Notes[1], "2 errors that are none: a client") ||
		!strings.Contains(e.Notes[2], "1 error that is none: an exec") ||
		!slices.ContainsFunc(e.Notes,
			func(n string) bool { return strings.Contains(n, "1 error that is none: objects of a custom resource") }) ||
		!slices.ContainsFunc(e.Notes,
			func(n string) bool { return strings.Contains(n, "1 error that is none: the Service of an APIService") }) {
		t.Errorf("notes %q", e.Notes)
	}
	crashed := &Examination{Time: now, Procedures: clusterstatus.Services()}
	crashed.program(clusterstatus.Diagnosis{Server: "s1", Files: map[string]string{"log.txt": "panic: nil map\n"}})
	if len(crashed.Findings) != 1 {
		t.Errorf("of a panic is found %+v", crashed.Findings)
	}
	late := &Examination{Time: now, Procedures: clusterstatus.Services()}
	late.program(clusterstatus.Diagnosis{Server: "s1",
		Files: map[string]string{"log.txt": "time=" + now.Format(time.RFC3339Nano) +
			` level=ERROR msg="Post-timeout activity" part=k8s logger=UnhandledError timeElapsed=1ms method=GET path="/ result=<nil>" result="nil map\ngoroutine 7 [running]: x result=<nil>"` + "\n"}})
	if len(late.Findings) != 1 || len(late.Notes) != 0 {
		t.Errorf("of a panic after the time was over is found %+v, noted %q", late.Findings, late.Notes)
	}
}

// TestDoctorTellsOfAMachineOnce: what servers on one machine have in common is one finding, or one
// note; what each has of its own is told of each.
func TestDoctorTellsOfAMachineOnce(t *testing.T) {
	kernel := func(boot, load, forward string) string {
		return "== /proc/sys/kernel/random/boot_id\n" + boot +
			"\n\n== /proc/stat\ncpu 1\ncpu0 1\ncpu1 1\n\n== /proc/loadavg\n99.0 " + load + " 1.0 1/1 1\n\n" +
			"== /proc/meminfo\nMemTotal: 1000000 kB\nMemAvailable: 50000 kB\n\n== /proc/sys/net/ipv4/ip_forward\n" +
			forward + "\n\n"
	}
	checks := func(name string) string {
		data, err := json.Marshal(
			[]map[string]any{{"name": "overlayfs", "ok": true}, {"name": name, "detail": "none", "remedy": "mend it"}})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	diagnosis := func(server, machine, check string) clusterstatus.Diagnosis {
		return clusterstatus.Diagnosis{Server: server,
			Files: map[string]string{"machine.txt": machine, "check.json": checks(check)}}
	}
	e := &Examination{Time: time.Now(), Procedures: clusterstatus.Services(), Servers: []clusterstatus.Diagnosis{
		diagnosis("s1", kernel("b1", "8.4", "1"), "cgroups"), diagnosis("s2", kernel("b1", "8.6", "0"), "cgroups"),
		diagnosis("s3", kernel("b1", "8.6", "1"), "other"),
		diagnosis("s4", kernel("b2", "7.9", "1"), "cgroups"),
		diagnosis("s5", kernel("open boot_id: no such file", "1.0", "1"), "cgroups"),
		diagnosis("s6", kernel("open boot_id: no such file", "1.0", "1"), "cgroups"),
	}}
	e.Diagnose()
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
		"s4> server s4: cgroups: none > mend it", "s5> server s5: cgroups: none > mend it",
		"s6> server s6: cgroups: none > mend it",
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
	if want := []string{
		"servers s1, s2 and s3, on one machine: the load of the last five minutes is 8 on 2 CPUs"}; !slices.Equal(
		e.Notes, want) {
		t.Errorf("notes %q, want %q", e.Notes, want)
	}
}

// TestDoctorCountsWrites: that one write in a hundred is slow is said of some hundreds of writes.
func TestDoctorCountsWrites(t *testing.T) {
	for writes, findings := range map[int]int{106: 0, 256: 1} {
		e := &Examination{
			Status: &clusterstatus.ClusterStatus{
				Members: []clusterstatus.MemberStatus{{Name: "s1",
					Store: &clusterstatus.StoreStatus{DiskP99Seconds: 0.3, DiskWrites: writes}}}}}
		if e.Diagnose(); len(e.Findings) != findings {
			t.Errorf("of %d writes: %+v", writes, e.Findings)
		}
	}
}
