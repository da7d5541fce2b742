package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	clustertest "github.com/barque/barque/cluster-test"
)

// statusOf makes a status of servers, each given as revision/hash/quarantine, or empty when it does
// not answer.
func statusOf(t *testing.T, stores ...string) *clustertest.Status {
	s := new(clustertest.Status)
	text := `{"members":[{"name":"a1","role":"agent"}`
	for i, store := range stores {
		text += fmt.Sprintf(`,{"name":"s%d","role":"server"`, i+1)
		if p := strings.Split(store, "/"); len(p) == 3 {
			text += fmt.Sprintf(`,"store":{"revision":%s,"stateHash":%q,"quarantined":%q}`, p[0], p[1], p[2])
		}
		text += "}"
	}
	if err := json.Unmarshal([]byte(text+"]}"), s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestAwaitState: servers that are not at one revision are asked again; a forbidden state is a
// failure, also when it is over at the next asking.
func TestAwaitState(t *testing.T) {
	const same = "9/a/ 9/a/ 9/a/"
	for name, c := range map[string]struct {
		answers []string // the last one again and again
		says    string   // of the error
		broken  bool
	}{
		"at once":            {[]string{same}, "", false},
		"one is behind":      {[]string{"9/a/ 9/a/ 8/b/", same}, "", false},
		"one is away":        {[]string{"9/a/ 9/a/ -", same}, "", false},
		"one stays away":     {[]string{"9/a/ 9/a/ -"}, "the store of s3 does not answer", false},
		"one is not told of": {[]string{"9/a/ 9/a/"}, "2 servers of 3", false},
		"none is told of":    {[]string{""}, "0 servers of 3", false},
		"no hash":            {[]string{"9// 9// 9//"}, "tells no hash", false},
		"divergence that heals": {[]string{"9/a/ 9/a/ 9/b/", same}, "at revision 9 s1 has the hash a, and s3 has b",
			true},
		"divergence, one ahead": {[]string{"10/c/ 9/a/ 9/b/", same}, "at revision 9 s2 has the hash a, and s3 has b",
			true},
		"a quarantine that heals": {[]string{"9/a/ - 8/b/differs", same}, "s3 is in quarantine: differs", true},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			state, err := awaitState(t.Context(), func(context.Context) (*clustertest.Status, error) {
				n++
				return statusOf(t, strings.Fields(c.answers[min(n, len(c.answers))-1])...), nil
			})
			var broken *stateError
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) ||
				errors.As(err, &broken) != c.broken {
				t.Errorf("%s: %q, %v; want %q", name, state, err, c.says)
			} else if err == nil && (state != "revision 9, hash a" || n != len(c.answers)) {
				t.Errorf("%s: %q after %d answers", name, state, n)
			}
		})
	}
}
