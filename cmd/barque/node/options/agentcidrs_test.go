package options

import (
	"testing"
	"time"
)

func TestAgentCIDRs(t *testing.T) {
	for text, want := range map[string]bool{"203.0.113.0/24": true, "2001:db8::/32": true, "203.0.113.1/24": false,
		"203.0.113.1": false, "": false} {
		o := &Options{AgentCIDRs: []string{text}}
		if err := o.parseAgentCIDRs(); (err == nil) != want || (len(o.AgentPrefixes) == 1) != want {
			t.Errorf("%q: %v, %v", text, o.AgentPrefixes, err)
		}
	}
}

func TestTokenOptions(t *testing.T) {
	if o := DefaultTokenOptions(); o.validate() != nil || o.MaxExpiration == 0 {
		t.Errorf("by default %+v", o)
	}
	for text, want := range map[int64]bool{0: true, 3600: true, 3599: false, -1: false, 1<<32 - 1: true,
		1 << 32: false} {
		o := TokenOptions{MaxExpiration: time.Duration(text) * time.Second}
		if err := o.validate(); (err == nil) != want {
			t.Errorf("%d s: %v", text, err)
		}
	}
}
