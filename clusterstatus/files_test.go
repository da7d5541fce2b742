package clusterstatus

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestFiles: files that differ, are missing on a server, or have a problem are warnings. A server
// of an earlier version, which reports none, is no difference.
func TestFiles(t *testing.T) {
	const flag = "--authentication-config"
	file := func(hash string) []ConfigFile { return []ConfigFile{{Flag: flag, Path: "/etc/a.yaml", Hash: hash}} }
	for name, c := range map[string]struct {
		members []MemberStatus
		want    []string
	}{
		"same":    {[]MemberStatus{{Name: "s1", Files: file("a")}, {Name: "s2", Files: file("a")}}, nil},
		"earlier": {[]MemberStatus{{Name: "s1", Files: file("a")}, {Name: "s2"}}, nil},
		"differs": {
			[]MemberStatus{{Name: "s1", Files: file("a")}, {Name: "s2", Files: file("b")},
				{Name: "s3", Files: file("a")}},
			[]string{flag + " differs between servers: s1, s3 | s2."}},
		"encryption": {
			[]MemberStatus{{Name: "s1", Files: []ConfigFile{{Flag: encryptionFlag, Path: "/etc/e.yaml", Hash: "a"}}},
				{Name: "s2", Files: []ConfigFile{}}},
			[]string{"s1 | s2 (without it). A server may not be able to read"}},
		"missing": {[]MemberStatus{{Name: "s1", Files: file("a")}, {Name: "s2", Files: []ConfigFile{}}},
			[]string{"s1 | s2 (without it)"}},
		"problem": {
			[]MemberStatus{
				{Name: "s1",
					Files: []ConfigFile{{Flag: flag, Path: "/etc/a.yaml", Hash: "a", Problem: "line 3 is wrong"}}},
				{Name: "s2", Files: file("a")}},
			[]string{"server s1: " + flag + " /etc/a.yaml: line 3 is wrong"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &warner{status: &ClusterStatus{Members: c.members}, by: Services()}
			w.files()
			if len(w.found) != len(c.want) {
				t.Fatalf("%+v, want %q", w.found, c.want)
			}
			for i, f := range w.found {
				if !strings.Contains(f.Text, c.want[i]) || f.Mend == "" || f.Severity != Attention {
					t.Errorf("%+v, want %q", f, c.want[i])
				}
			}
		})
	}
}

// TestFilesThatAwaitARestart: where the files are equal on disk, the remedy is a restart.
func TestFilesThatAwaitARestart(t *testing.T) {
	const flag = "--audit-policy-file"
	server := func(name, hash, next string) MemberStatus {
		f := ConfigFile{Flag: flag, Path: "/etc/p.yaml", Hash: hash, Next: next}
		if next != "" {
			f.Problem = "it has changed"
		}
		return MemberStatus{Name: name, Files: []ConfigFile{f}}
	}
	here := Services()
	here.Here = true
	here.Restart = func(name string) string { return "dev stop " + name + "; dev start " + name }
	here.Logged = func(name, text string) string { return "grep " + text + " " + name + ".log" }
	const restart = "systemctl restart barque-server"
	for name, c := range map[string]struct {
		by       Procedures
		members  []MemberStatus
		on, mend string // of the last warning
		text     string
	}{
		"one is late": {Services(),
			[]MemberStatus{server("s1", "b", ""), server("s2", "a", "b"), server("s3", "b", "")}, "s2", restart,
			"equal on disk: a restart of s2 is due"},
		"two are late": {Services(),
			[]MemberStatus{server("s1", "b", ""), server("s3", "a", "b"), server("s2", "c", "b")}, "s2, then s3",
			restart, "a restart of s2, s3 is due"},
		"here": {here, []MemberStatus{server("s3", "b", ""), server("s2", "a", "b"), server("s1", "a", "b")},
			"", "dev stop s1; dev start s1; dev stop s2; dev start s2", "a restart of s1, s2 is due"},
		"all are late": {Services(), []MemberStatus{server("s1", "a", "b"), server("s2", "a", "b")}, "s2", restart,
			"server s2: " + flag + " /etc/p.yaml: it has changed"},
		"files differ": {Services(), []MemberStatus{server("s1", "b", ""), server("s2", "a", "c")}, "",
			"sha256sum /etc/p.yaml on each server; copy the right file to the others", "differs between servers"},
		"it is wrong": {Services(),
			[]MemberStatus{{Name: "s1", Files: []ConfigFile{{Flag: flag, Hash: "a", Problem: "line 3"}}}}, "s1",
			"journalctl -u barque-server -g audit-policy-file", "line 3"},
		"wrong, here": {here,
			[]MemberStatus{{Name: "s1", Files: []ConfigFile{{Flag: flag, Hash: "a", Problem: "line 3"}}}}, "",
			"grep audit-policy-file s1.log", "line 3"},
		"wrong, issuer": {here,
			[]MemberStatus{{Name: "s1", Files: []ConfigFile{{Flag: "--oidc-…", Hash: "a", Problem: "it is away"}}}}, "",
			"grep oidc s1.log", "it is away"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &warner{status: &ClusterStatus{Members: c.members}, by: c.by}
			w.files()
			last := w.found[len(w.found)-1]
			if last.On != c.on || last.Mend != c.mend || !strings.Contains(last.Text, c.text) {
				t.Errorf("%+v, want %q on %q for %q", last, c.mend, c.on, c.text)
			}
			for _, f := range w.found {
				if strings.Contains(f.Text, "it has changed") && !strings.Contains(f.Mend, "start") {
					t.Errorf("%+v: want a restart", f)
				}
			}
		})
	}
}

// TestFilesTravel: the report tells "no files" from "does not know of files".
func TestFilesTravel(t *testing.T) {
	data, err := json.Marshal(ServerReport{Files: []ConfigFile{}})
	if err != nil {
		t.Fatal(err)
	}
	var got ServerReport
	if err := json.Unmarshal(data, &got); err != nil || got.Files == nil {
		t.Errorf("%s gives %v, %v", data, got.Files, err)
	}
	var earlier ServerReport
	if err := json.Unmarshal([]byte(`{"time":"2026-11-29T12:00:00Z"}`), &earlier); err != nil || earlier.Files != nil {
		t.Errorf("an earlier report gives %v, %v", earlier.Files, err)
	}
}
