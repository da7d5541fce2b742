package remote

import "testing"

func TestServerURL(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1":                   "https://10.0.0.1:6443",
		"10.0.0.1:7443":              "https://10.0.0.1:7443",
		"https://s1.example.net":     "https://s1.example.net:6443",
		"s1:7443":                    "https://s1:7443",
		"2001:db8::1":                "https://[2001:db8::1]:6443",
		"[2001:db8::1]":              "https://[2001:db8::1]:6443",
		"https://[2001:db8::1]":      "https://[2001:db8::1]:6443",
		"https://[2001:db8::1]:7443": "https://[2001:db8::1]:7443",
		"":                           "",
		"https://":                   "",
		"s1/path":                    "",
		"me@s1":                      "",
		"a:b:c":                      "",
		"[2001:db8::1":               "",
	} {
		if got, err := ServerURL(address); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", address, got, err, want)
		}
	}
}
