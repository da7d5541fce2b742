package network

import (
	"os"
	"testing"

	"github.com/barque/barque/internal/needs"
)

func TestCheck(t *testing.T) {
	needs.Root(t, "what the network needs of the machine")
	before, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range Check() {
		if !finding.OK {
			t.Errorf("%s: %s; %s", finding.Name, finding.Detail, finding.Remedy)
		}
	}
	if after, _ := os.Readlink("/proc/thread-self/ns/net"); after != before {
		t.Errorf("the caller was left in %s, it was in %s", after, before)
	}
}
