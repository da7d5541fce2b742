package remote

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/membership/datakeys"
)

// TestEncryptionForPeople: the status names the operator's next step. No server's disk is called
// clean while it may have objects in clear.
func TestEncryptionForPeople(t *testing.T) {
	servers := func(s3 datakeys.ServerStatus) []datakeys.ServerStatus {
		s3.Name = "s3"
		return []datakeys.ServerStatus{{Name: "s1", State: "alive", Alive: true, Generation: 5, Cleaned: true}, s3}
	}
	alive := datakeys.ServerStatus{State: "alive", Alive: true, Generation: 5, Cleaned: true}
	for _, c := range []struct {
		name      string
		status    datakeys.Status
		want, not []string
	}{
		{"off", datakeys.Status{Generation: 5, Servers: servers(alive)},
			[]string{"objects in clear", "→ barque secrets-encrypt enable"}, []string{"clean"}},
		{"on", datakeys.Status{Generation: 5, Enabled: true, Servers: servers(alive)}, []string{"clean"},
			[]string{"→", "in clear\n"}},
		{"identity first",
			datakeys.Status{Generation: 5, Enabled: true, Servers: servers(alive),
				File: &datakeys.FileStatus{Path: "/f", Writes: true,
					Resources: map[string]string{"secrets": "identity"}}},
			[]string{"encryption\ton\n", "/f (in use)", "identity: left to the data keys"}, nil},
		{"a file that is not in use",
			datakeys.Status{Generation: 5, Enabled: true, Servers: servers(alive),
				File: &datakeys.FileStatus{Path: "/f", Apart: "s2 is away",
					Resources: map[string]string{"secrets": "aesgcm"}}},
			[]string{"/f (not in use: the data key writes)", "waiting\ts2 is away"}, nil},
		{"objects under another key", datakeys.Status{Generation: 5, Enabled: true, Other: 3, Servers: servers(alive)},
			[]string{"objects to rewrite\t3", "→ barque secrets-encrypt rewrite"}, nil},
		{"rewriting", datakeys.Status{Generation: 5, Step: datakeys.Rewrite, Enabled: true, Servers: servers(alive)},
			[]string{"to be cleaned"}, []string{"→", " clean\n"}},
		{"objects in clear", datakeys.Status{Generation: 5, Enabled: true, Clear: 2, Servers: servers(alive)},
			[]string{"→ barque secrets-encrypt rewrite"}, nil},
		{"one is away",
			datakeys.Status{Generation: 5, Enabled: true,
				Servers: servers(datakeys.ServerStatus{State: "dead", Generation: 3})},
			[]string{"may have values", "→ start server s3", "barque cluster remove s3"}, nil},
		{"one is away, and has all",
			datakeys.Status{Generation: 5, Enabled: true,
				Servers: servers(datakeys.ServerStatus{State: "dead", Generation: 5, Cleaned: true})},
			nil, []string{"may have values", "→"}},
		{"a full disk",
			datakeys.Status{Generation: 5, Step: datakeys.Clean, Enabled: true,
				Servers: servers(
					datakeys.ServerStatus{State: "alive", Alive: true, Generation: 4, Problem: "no space left"})},
			[]string{"to be cleaned", "server s3 cannot go on: no space left"}, []string{"clean: no"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			if err := WriteEncryption(&out, &c.status); err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, &out)
				}
			}
			for _, not := range c.not {
				if strings.Contains(strings.ReplaceAll(out.String(), "\t", " "), not) {
					t.Errorf("%q in\n%s", not, &out)
				}
			}
		})
	}
}

// TestEncryptionOfAnEarlierVersion: a server without the feature is named as that.
func TestEncryptionOfAnEarlierVersion(t *testing.T) {
	old := httptest.NewServer(http.NotFoundHandler())
	defer old.Close()
	if _, err := Encryption(t.Context(), &rest.Config{Host: old.URL}); err == nil ||
		!strings.Contains(err.Error(), "upgrade all servers") {
		t.Error(err)
	}
}
