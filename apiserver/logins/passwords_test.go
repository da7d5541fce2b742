package logins

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

func hashOf(t testing.TB, password string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(hash)
}

func basic(name, password string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/api", nil)
	r.SetBasicAuth(name, password)
	return r
}

func TestPasswords(t *testing.T) {
	p, err := newPasswords([]byte("# users\nann:" + hashOf(t, "right") + ":dev, ops\nbob:" + hashOf(t, "b") + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	p.now = func() time.Time { return now }
	request := basic("ann", "right")
	response, ok, err := p.AuthenticateRequest(request)
	if !ok || err != nil || response.User.GetName() != "ann" ||
		strings.Join(response.User.GetGroups(), " ") != "dev ops" {
		t.Fatalf("%+v, %v", response, err)
	}
	if request.Header.Get("Authorization") != "" {
		t.Error("the password is passed on")
	}
	if _, ok, err := p.AuthenticateRequest(httptest.NewRequest(http.MethodGet, "/", nil)); ok || err != nil {
		t.Errorf("a request without a password: %v, %v", ok, err)
	}
	for _, wrong := range [][2]string{{"ann", "wrong"}, {"ann", ""}, {"eve", "right"}, {"", ""}, {"bob", "right"}} {
		if _, ok, err := p.AuthenticateRequest(basic(wrong[0], wrong[1])); ok || err == nil {
			t.Errorf("%v: %v, %v", wrong, ok, err)
		}
	}
	// Guessing is slow, and does not delay users with a cached password.
	for range attempts {
		_, _, err = p.AuthenticateRequest(basic("ann", "guess"))
	}
	if !errors.Is(err, errTooMany) {
		t.Errorf("guesses are not limited: %v", err)
	}
	if _, ok, err := p.AuthenticateRequest(basic("ann", "right")); !ok {
		t.Errorf("a good password is shut out by guesses: %v", err)
	}
	now = now.Add(remember + time.Second)
	if err := p.replace([]byte("bob:" + hashOf(t, "b") + "\n")); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := p.AuthenticateRequest(basic("ann", "right")); ok {
		t.Error("a removed user logs in")
	}
	if err := p.replace([]byte("ann:secret\n")); err == nil {
		t.Error("a password in clear was taken")
	}
	if _, ok, err := p.AuthenticateRequest(basic("bob", "b")); !ok {
		t.Errorf("a wrong file has ended the former one: %v", err)
	}
}

func TestParsePasswords(t *testing.T) {
	good := hashOf(t, "x")
	for line, want := range map[string]string{
		"":                                "no user",
		"ann":                             "line 1",
		":" + good:                        "line 1",
		"ann:" + good + "\nann:" + good:   "twice",
		"ann:{SHA}abc":                    "htpasswd",
		"barque:x:" + good:                "line 1",
		"ann:" + good + ":barque:servers": "own parts",
	} {
		if _, err := parsePasswords([]byte(line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", line, err, want)
		}
	}
}

func FuzzParsePasswords(f *testing.F) {
	f.Add([]byte("ann:" + hashOf(f, "x") + ":dev,ops\n#\n\n"))
	f.Add([]byte("ann:$2y$10$abc:"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return
		}
		table, err := parsePasswords(data)
		if err == nil && (len(table.accounts) == 0 || table.none == nil) {
			t.Errorf("%q made an empty table", data)
		}
	})
}
