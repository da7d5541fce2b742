package authn

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

// Readers of tokens expect a list of audiences, also when there is one. Tokens that were issued
// with a string stay valid.
func TestAudiences(t *testing.T) {
	b := Binding{Namespace: "ns", ServiceAccount: "robot", Audiences: []string{"one"}, Lifetime: time.Hour}
	data, err := json.Marshal(b.claims("issuer", "id", time.Unix(0, 0)))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), `"aud":["one"]`) || strings.Count(string(data), `"aud"`) != 1 {
		t.Errorf("claims %s", data)
	}
	for text, want := range map[string][]string{
		`{"aud":"one"}`: {"one"}, `{"aud":["one"]}`: {"one"}, `{"aud":["one","two"]}`: {"one", "two"}, `{}`: nil,
	} {
		var c claims
		if err := json.Unmarshal([]byte(text), &c); err != nil || !slices.Equal(c.Audience, want) {
			t.Errorf("%s: %q, %v", text, c.Audience, err)
		}
	}
	if err := json.Unmarshal([]byte(`{"aud":1}`), &claims{}); err == nil {
		t.Error("a number is taken for an audience")
	}
}
