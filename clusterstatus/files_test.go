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
		"differs": {[]MemberStatus{{Name: "s1", Files: file("a")}, {Name: "s2", Files: file("b")}, {Name: "s3", Files: file("a")}},
			[]string{flag + " differs between servers: s1, s3 | s2."}},
		"encryption": {[]MemberStatus{{Name: "s1", Files: []ConfigFile{{Flag: encryptionFlag, Path: "/etc/e.yaml", Hash: "a"}}}, {Name: "s2", Files: []ConfigFile{}}},
			[]string{"s1 | s2 (without it). A server may not be able to read"}},
		"missing": {[]MemberStatus{{Name: "s1", Files: file("a")}, {Name: "s2", Files: []ConfigFile{}}},
			[]string{"s1 | s2 (without it)"}},
		"problem": {[]MemberStatus{{Name: "s1", Files: []ConfigFile{{Flag: flag, Path: "/etc/a.yaml", Hash: "a", Problem: "line 3 is wrong"}}}, {Name: "s2", Files: file("a")}},
			[]string{"server s1: " + flag + " /etc/a.yaml: line 3 is wrong"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &warner{status: &ClusterStatus{Members: c.members}}
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
