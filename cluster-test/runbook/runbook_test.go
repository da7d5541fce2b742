package runbook

import (
	"slices"
	"strings"
	"testing"
)

const page = `# Title

## Remove a server for good

Text with ` + "`barque inline`" + `.

    barque cluster leave                     # on s3 itself; or, from anywhere: barque cluster remove s3
    (umask 077; barque snapshot key > backup.key)

    … what it prints: barque says so

1. In a list:

       barque cluster recover --data-dir /mnt/s2
       barque cluster leave

### Below it

    barque cluster recover --data-dir /mnt/s2
    barque cluster recover --data-dir /mnt/s2  # again
`

func TestParse(t *testing.T) {
	b := parse(page)
	for title, want := range map[string][]string{
		"Title": nil,
		"Remove a server for good": {"barque cluster leave", "(umask 077; barque snapshot key > backup.key)",
			"barque cluster recover --data-dir /mnt/s2"},
		"Below it": {"barque cluster recover --data-dir /mnt/s2"},
	} {
		s, err := b.Section(title)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.Commands, want) {
			t.Errorf("%s has %q, want %q", title, s.Commands, want)
		}
	}
	if _, err := b.Section("Nothing"); err == nil || !strings.Contains(err.Error(), `"Nothing"`) {
		t.Errorf("a heading that is not there: %v", err)
	}
}

func TestFind(t *testing.T) {
	s := &Section{Title: "T", Commands: []string{"barque cluster recover --data-dir /mnt/s2"}}
	if got, err := s.Find("barque cluster recover --data-dir /mnt/s2", "s2", "s3"); err != nil ||
		got != "barque cluster recover --data-dir /mnt/s3" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := s.Find("barque cluster recover"); err == nil || !strings.Contains(err.Error(), "--data-dir /mnt/s2") {
		t.Errorf("other words pass: %v", err)
	}
}
