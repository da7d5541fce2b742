package licenses

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/barque/barque/internal/needs"
)

func TestPackedComponentsAreTheSame(t *testing.T) {
	components := []Component{
		{Name: "example.org/a", Version: "v1.2.0", Programs: []string{"barque", "runc"},
			Texts: []Text{{"LICENSE", "do as you like\n"}, {"sub/NOTICE", "by me\n\n"}}},
		{Name: "glibc", Programs: []string{"runc"}, Texts: []Text{{"/usr/share/doc/libc6-dev/copyright", "free"}}},
	}
	packed, err := Pack(components)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Unpack(packed)
	if err != nil || !reflect.DeepEqual(got, components) {
		t.Errorf("%+v, %v", got, err)
	}
	var text strings.Builder
	if err := Write(&text, components); err != nil {
		t.Fatal(err)
	}
	if want := rule + "\nexample.org/a v1.2.0, in barque, runc\n\nLICENSE:\n\ndo as you like\n\n" +
		"sub/NOTICE:\n\nby me\n\n" + rule +
		"\nglibc, in runc\n\n/usr/share/doc/libc6-dev/copyright:\n\nfree\n"; text.String() != want {
		t.Errorf("%s", text.String())
	}
	if _, err := Unpack(packed[:len(packed)-3]); err == nil {
		t.Error("a file that was cut off is read")
	}
}

// A binary that was built by make has the licences of its largest parts.
func TestAll(t *testing.T) {
	all, err := All()
	if errors.Is(err, ErrNotBuilt) {
		needs.Missing(t, "the licence texts in the binary (make licenses)", "that barque licenses prints them")
	}
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, c := range all {
		found[c.Name] = true
		if len(c.Texts) == 0 || len(c.Programs) == 0 {
			t.Errorf("%s has %d texts and is in %v", c.Name, len(c.Texts), c.Programs)
		}
		if strings.HasPrefix(c.Name, "github.com/barque/barque") {
			t.Errorf("%s is no component of others", c.Name)
		}
	}
	for _, name := range []string{"k8s.io/apiserver", "github.com/hashicorp/raft", "github.com/opencontainers/runc",
		"github.com/containerd/containerd/v2", "github.com/containernetworking/plugins"} {
		if !found[name] {
			t.Errorf("no licence of %s", name)
		}
	}
	for _, name := range []string{"honnef.co/go/tools", "github.com/anishathalye/nothing"} {
		if found[name] {
			t.Errorf("%s is not compiled in", name)
		}
	}
}
