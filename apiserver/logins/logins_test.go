package logins

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/barque/barque/apiserver/logins/logintest"
	wait "github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/clusterusers"
)

const ownIssuer = "https://kubernetes.default.svc.cluster.local"

func start(t *testing.T, change func(*Options)) *Logins {
	t.Helper()
	o := NewOptions()
	change(o)
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	l, err := New(
		Config{Options: o, Server: "s1", Issuers: []string{ownIssuer}, Audiences: []string{ownIssuer},
			Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

func (l *Logins) login(t *testing.T, token string) (user.Info, error) {
	t.Helper()
	response, ok, err := union.New(l.Tokens()...).AuthenticateToken(t.Context(), token)
	if !ok {
		return nil, err
	}
	return response.User, err
}

const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"

const mappings = `  claimMappings:
    username: {expression: claims.name}
    groups: {expression: "has(claims.groups) ? claims.groups : []"}
  claimValidationRules:
  - {expression: "claims.sub != 'blocked'", message: they are blocked}
`

// ready waits until the issuers' keys are known.
func (l *Logins) ready(t *testing.T) {
	t.Helper()
	wait.NoError(t, "the issuers answer", func(context.Context) error { return l.current.Load().healthy() })
}

// TestIssuers: users of several issuers log in; none of them gets a reserved name.
func TestIssuers(t *testing.T) {
	one, two, stranger := logintest.NewIssuer(t), logintest.NewIssuer(t), logintest.NewIssuer(t)
	path := logintest.Write(t, filepath.Join(t.TempDir(), "a.yaml"),
		head+"jwt:\n"+one.Config()+mappings+two.Config()+
			"  claimMappings: {username: {claim: sub, prefix: \"two:\"}}\n")
	l := start(t, func(o *Options) { o.ConfigFile = path })
	l.ready(t)
	for name, c := range map[string]struct {
		token  string
		want   string
		groups []string
		err    string
	}{
		"first": {
			one.Token(t, map[string]any{"name": "ann", "groups": []string{"dev", "system:authenticated"}}), "ann",
			[]string{"dev", "system:authenticated"}, ""},
		"second": {two.Token(t, map[string]any{"sub": "7"}), "two:7", nil, ""},
		"rule": {one.Token(t, map[string]any{"name": "ann", "sub": "blocked"}), "", nil,
			"they are blocked"},
		"unknown issuer":    {stranger.Token(t, map[string]any{"name": "ann"}), "", nil, ""},
		"signed by another": {stranger.Token(t, map[string]any{"name": "ann", "iss": one.URL}), "", nil, "verify"},
		"other audience":    {one.Token(t, map[string]any{"name": "ann", "aud": "shop"}), "", nil, "audience"},
		"ended":             {one.Token(t, map[string]any{"name": "ann", "exp": 1000}), "", nil, "expired"},
		"masters": {one.Token(t, map[string]any{"name": "ann", "groups": []string{"system:masters"}}), "",
			nil, "reserved"},
		"nodes": {one.Token(t, map[string]any{"name": "ann", "groups": []string{"system:nodes"}}), "",
			nil, "reserved"},
		"admins": {one.Token(t, map[string]any{"name": "ann", "groups": []string{"barque:admins"}}), "",
			nil, "reserved"},
		"a node":          {one.Token(t, map[string]any{"name": "system:node:n1"}), "", nil, "reserved"},
		"the front proxy": {one.Token(t, map[string]any{"name": "barque:front-proxy"}), "", nil, "reserved"},
		"of the cluster":  {one.Token(t, map[string]any{"name": "ann", "iss": ownIssuer}), "", nil, ""},
		"no JWT":          {"abc", "", nil, ""},
		"a service account's": {one.Token(t, map[string]any{"name": "system:serviceaccount:kube-system:x"}), "", nil,
			"reserved"},
	} {
		t.Run(name, func(t *testing.T) {
			who, err := l.login(t, c.token)
			switch {
			case c.want == "" && who != nil:
				t.Errorf("they are %+v", who)
			case c.want == "":
				if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
					t.Errorf("%v, want %q", err, c.err)
				}
			case who == nil || err != nil:
				t.Fatalf("%v, %v", who, err)
			case who.GetName() != c.want || !slices.Equal(who.GetGroups(), c.groups):
				t.Errorf("they are %+v", who)
			}
		})
	}
}

// TestReload: a changed file counts once its issuers have answered. Until then, and if it is
// faulty, the former one does.
func TestReload(t *testing.T) {
	one, two := logintest.NewIssuer(t), logintest.NewIssuer(t)
	path := logintest.Write(t, filepath.Join(t.TempDir(), "a.yaml"), head+"jwt:\n"+one.Config()+mappings)
	l := start(t, func(o *Options) { o.ConfigFile = path })
	l.ready(t)
	first, second := one.Token(t, map[string]any{"name": "ann"}), two.Token(t, map[string]any{"name": "bob"})
	is := func(token, want string) bool {
		who, _ := l.login(t, token)
		return want == "" && who == nil || who != nil && who.GetName() == want
	}
	if !is(first, "ann") || !is(second, "") {
		t.Fatal("the first configuration is not in effect")
	}
	logintest.Write(t, path, head+"jwt:\n"+one.Config()+"  claimMappings: {usernam: {claim: sub}}\n")
	wait.True(t, "the problem is shown", func() bool { return strings.Contains(l.Files()[0].Problem, "usernam") })
	if !is(first, "ann") {
		t.Fatal("a wrong file has ended the former one")
	}
	logintest.Write(t, path, head+"jwt:\n"+two.Config()+mappings)
	wait.True(t, "the second configuration is in effect", func() bool { return is(second, "bob") && is(first, "") })
	if f := l.Files()[0]; f.Problem != "" || f.Flag != configFlag {
		t.Errorf("%+v", f)
	}
	logintest.Write(t, path, head+"jwt: []\n")
	wait.True(t, "no issuer counts", func() bool { return is(second, "") })
}

// TestAnonymous: the file decides about requests without credentials, at each moment.
func TestAnonymous(t *testing.T) {
	path := logintest.Write(t, filepath.Join(t.TempDir(), "a.yaml"),
		head+"anonymous: {enabled: true, conditions: [{path: /apis}]}\n")
	l := start(t, func(o *Options) { o.ConfigFile = path })
	may := func(url string) (bool, bool) {
		a, counts := l.Anonymous()
		if a == nil {
			return false, counts
		}
		_, ok, err := a.AuthenticateRequest(httptest.NewRequest(http.MethodGet, url, nil))
		return ok && err == nil, counts
	}
	if ok, counts := may("/apis"); !ok || !counts {
		t.Error("the condition is not met")
	}
	if ok, _ := may("/api"); ok {
		t.Error("another path is permitted")
	}
	logintest.Write(t, path, head+"anonymous: {enabled: false}\n")
	wait.True(t, "they are off", func() bool { ok, counts := may("/apis"); return !ok && counts })
	// Proxies and joining machines read these, with any file.
	for _, path := range []string{"/readyz", "/healthz", "/livez", "/version"} {
		if ok, _ := may(path); !ok {
			t.Errorf("%s is not answered", path)
		}
	}
	logintest.Write(t, path, head)
	wait.True(t, "the file does not mention them", func() bool { _, counts := may("/readyz"); return !counts })
}

// reviewer is a webhook that names a user for every token.
func reviewer(t *testing.T, who *authenticationv1.UserInfo, asked *atomic.Int32) *httptest.Server {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: *who}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(s.Close)
	return s
}

// TestWebhook: it names users, but no reserved ones, and sees no token of the cluster.
func TestWebhook(t *testing.T) {
	who, asked := &authenticationv1.UserInfo{Username: "ann", Groups: []string{"dev"}}, &atomic.Int32{}
	config := logintest.Kubeconfig(t, reviewer(t, who, asked))
	l := start(t, func(o *Options) { o.Webhook.ConfigFile, o.Webhook.Version = config, "v1" })
	for range 2 {
		if got, err := l.login(t, "secret"); err != nil || got == nil || got.GetName() != "ann" {
			t.Fatalf("%v, %v", got, err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the webhook was asked %d times: its answer is to count for a while", n)
	}
	own := logintest.NewIssuer(t).Token(t, map[string]any{"iss": ownIssuer, "sub": "system:serviceaccount:a:b"})
	if got, err := l.login(t, own); got != nil || asked.Load() != 1 {
		t.Errorf("a token of the cluster went to the webhook: %v, %v", got, err)
	}
	legacy := logintest.NewIssuer(t).Token(t,
		map[string]any{"iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:a:b"})
	for _, token := range []string{legacy, "abcdef.0123456789abcdef"} {
		if got, err := l.login(t, token); got != nil || asked.Load() != 1 {
			t.Errorf("%s went to the webhook: %v, %v", token, got, err)
		}
	}
	for i, lie := range []authenticationv1.UserInfo{
		{Username: "ann", Groups: []string{"system:masters"}}, {Username: "system:node:n1"},
		{Username: "x", Groups: []string{"barque:admins"}}, {Username: "barque:kubelet-client"},
	} {
		*who = lie
		if got, err := l.login(t, "lie "+string(rune('a'+i))); got != nil || err == nil ||
			!strings.Contains(err.Error(), "reserved") {
			t.Errorf("%+v: %v, %v", lie, got, err)
		}
	}
}

// TestWebhookHangs: a request waits for the webhook no longer than for its own end.
func TestWebhookHangs(t *testing.T) {
	config := logintest.Kubeconfig(t, logintest.Hanging(t))
	l := start(t, func(o *Options) { o.Webhook.ConfigFile, o.Webhook.CacheTTL = config, 0 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	response, ok, err := union.New(l.Tokens()...).AuthenticateToken(ctx, "x")
	if ok || err == nil {
		t.Fatalf("%v, %v", response, err)
	}
	if want := "the webhook of " + webhookFlag + " " + config + " gives no verdict"; !strings.Contains(err.Error(),
		want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// TestOIDCFlags: the flags make upstream's configuration.
func TestOIDCFlags(t *testing.T) {
	issuer := logintest.NewIssuer(t)
	ca := logintest.Write(t, filepath.Join(t.TempDir(), "ca.pem"), issuer.CA())
	for name, c := range map[string]struct {
		change func(*OIDC)
		want   string
	}{
		"default prefix": {func(*OIDC) {}, issuer.URL + "#1"},
		"no prefix":      {func(c *OIDC) { c.UsernamePrefix = "-" }, "1"},
		"email":          {func(c *OIDC) { c.UsernameClaim = "email" }, "ann@example.org"},
		"prefix":         {func(c *OIDC) { c.UsernamePrefix = "corp:" }, "corp:1"},
		"required":       {func(c *OIDC) { c.RequiredClaims = map[string]string{"team": "red"} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t, func(o *Options) {
				o.OIDC.IssuerURL, o.OIDC.ClientID, o.OIDC.CAFile, o.OIDC.GroupsClaim, o.OIDC.GroupsPrefix = issuer.URL,
					"barque", ca, "groups", "corp:"
				o.OIDC.SigningAlgs = []string{"ES256"}
				c.change(&o.OIDC)
			})
			l.ready(t)
			who, err := l.login(t,
				issuer.Token(t,
					map[string]any{"email": "ann@example.org", "email_verified": true, "groups": []string{"dev"}}))
			if c.want == "" {
				if who != nil || err == nil {
					t.Errorf("%v, %v", who, err)
				}
				return
			}
			if err != nil || who == nil || who.GetName() != c.want ||
				!slices.Equal(who.GetGroups(), []string{"corp:dev"}) {
				t.Errorf("%v, %v", who, err)
			}
		})
	}
}

// TestCheck: faulty options are refused before the start, by the name of the flag.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string { return logintest.Write(t, filepath.Join(dir, name), content) }
	issuer := "jwt:\n- issuer: {url: https://i.example, audiences: [a]}\n  claimMappings: {username: {claim: sub, prefix: \"system:\"}}\n"
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no file":    {func(o *Options) { o.ConfigFile = filepath.Join(dir, "none") }, "--authentication-config"},
		"empty file": {func(o *Options) { o.ConfigFile = file("empty", " \n") }, "empty"},
		"another kind": {func(o *Options) {
			o.ConfigFile = file("other",
				"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: []\n")
		}, "kind: AuthenticationConfiguration"},
		"reserved prefix": {func(o *Options) { o.ConfigFile = file("reserved", head+issuer) }, "reserved"},
		"a field unknown": {func(o *Options) { o.ConfigFile = file("unknown", head+"jwts: []\n") }, "unknown field"},
		"CEL": {func(o *Options) {
			o.ConfigFile = file("cel",
				head+
					"jwt:\n- issuer: {url: https://i.example, audiences: [a]}\n  claimMappings: {username: {expression: \"claims.(\"}}\n")
		}, "compilation failed"},
		"half an issuer": {func(o *Options) { o.OIDC.IssuerURL = "https://i.example" }, "--oidc-client-id"},
		"HTTP":           {func(o *Options) { o.OIDC.IssuerURL, o.OIDC.ClientID = "http://i.example", "a" }, "https"},
		"algorithm": {func(o *Options) {
			o.OIDC.IssuerURL, o.OIDC.ClientID, o.OIDC.SigningAlgs = "https://i.example", "a", []string{"none"}
		}, "--oidc-signing-algs"},
		"both": {func(o *Options) {
			o.OIDC.IssuerURL, o.OIDC.ClientID, o.ConfigFile = "https://i.example", "a", file("h", head)
		}, "without --oidc"},
		"webhook": {func(o *Options) { o.Webhook.ConfigFile = file("w", "") },
			"--authentication-token-webhook-config-file"},
		"version":        {func(o *Options) { o.Webhook.Version = "v2" }, "--authentication-token-webhook-version"},
		"tokens":         {func(o *Options) { o.TokenFile = file("t", "only,two\n") }, "--token-auth-file"},
		"clear password": {func(o *Options) { o.BasicFile = file("b", "ann:secret\n") }, "htpasswd"},
	} {
		t.Run(name, func(t *testing.T) {
			o := NewOptions()
			c.change(o)
			if err := o.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestStaticTokens: a file's token logs in, but passes for no part of the cluster.
func TestStaticTokens(t *testing.T) {
	path := logintest.Write(t, filepath.Join(t.TempDir(), "t.csv"),
		"good,ann,1,\"dev,ops\"\nbreak-glass,root,3,barque:admins\nolder,admin,4,system:masters\n")
	l := start(t, func(o *Options) { o.TokenFile = path })
	for token, want := range map[string]string{"good": "ann", "break-glass": "root", "older": "admin", "other": ""} {
		who, err := l.login(t, token)
		if (who == nil) != (want == "") || who != nil && who.GetName() != want {
			t.Errorf("%s: %v, %v", token, who, err)
		}
	}
	for what, c := range map[string]struct{ lines, want string }{
		"a part of the cluster": {"s3cret,barque:front-proxy,2\n", `line 1 has the user "barque:front-proxy"`},
		"a controller": {"a,ann,1\ns3cret,system:serviceaccount:kube-system:deployment-controller,44\n",
			"line 2 has the user"},
		"the scheduler":        {"s3cret,system:kube-scheduler,1\n", "names that begin with system: or barque:"},
		"a node":               {"s3cret,system:node:s1,1,system:nodes\n", "line 1 has the user"},
		"a node by its group":  {"s3cret,ann,1,\"dev,system:nodes\"\n", `into the group "system:nodes"`},
		"all accounts":         {"s3cret,ann,1,system:serviceaccounts\n", "line 1 puts the user"},
		"no token":             {"# none\n", "want token,user,uid"},
		"an empty file":        {"\n", "it has no token"},
		"an empty one":         {",ann,1\n", "line 1: want token,user,uid"},
		"the same twice":       {"s3cret,ann,1\nb,bob,2\ns3cret,eve,3\n", "line 3: it has the token of line 1"},
		"a line that is short": {"s3cret,ann\n", "line 1: want token,user,uid"},
		"an open quote":        {"s3cret,ann,1,\"dev\n", "quote"},
	} {
		o := NewOptions()
		o.TokenFile = logintest.Write(t, filepath.Join(t.TempDir(), "t.csv"), c.lines)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(head + "jwt:\n- issuer: {url: https://i.example, audiences: [a]}\n" + mappings))
	f.Add([]byte(head + "anonymous: {enabled: true, conditions: [{path: /readyz}]}\n"))
	f.Add(
		[]byte(
			`{"apiVersion":"apiserver.config.k8s.io/v1beta1","kind":"AuthenticationConfiguration","jwt":[{"issuer":{"url":"https://i","audiences":["a","b"],"audienceMatchPolicy":"MatchAny"},"claimMappings":{"username":{"claim":"sub","prefix":"system:"}}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := Load(data, []string{ownIssuer})
		if err != nil {
			return
		}
		for _, jwt := range config.JWT {
			if p := jwt.ClaimMappings.Username.Prefix; p != nil && isReserved(*p) || jwt.Issuer.URL == ownIssuer {
				t.Errorf("%q was taken", data)
			}
		}
	})
}

// TestFrontProxyFlags: the flags of an authenticating proxy make one, which names no reserved user,
// and the state of its file and of its flags is shown. A faulty file stops the start.
func TestFrontProxyFlags(t *testing.T) {
	ca := logintest.NewIssuer(t).CA()
	path := logintest.Write(t, filepath.Join(t.TempDir(), "proxy-ca.crt"), ca)
	parse := func(args ...string) *Options {
		t.Helper()
		o, flags := NewOptions(), pflag.NewFlagSet("server", pflag.ContinueOnError)
		o.AddFlags(flags)
		if err := flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		return o
	}
	config := func(o *Options) Config { return Config{Options: o, Logger: slog.New(slog.DiscardHandler)} }
	o := parse("--requestheader-client-ca-file="+path, "--requestheader-allowed-names=a,b",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-uid-headers=X-Remote-Uid",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-")
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	l, err := New(config(o))
	if err != nil || l.FrontProxy() == nil {
		t.Fatal(l, err)
	}
	files := l.Files()
	if len(files) != 2 || files[0].Flag != "--requestheader-client-ca-file" || files[0].Path != path ||
		files[1].Path != "" || files[1].Hash == "" {
		t.Errorf("the files are %+v", files)
	}
	if l, err := New(config(NewOptions())); err != nil || l.FrontProxy() != nil || len(l.Files()) != 0 {
		t.Errorf("without flags: %v, %v", l.FrontProxy(), err)
	}
	wrong := parse("--requestheader-client-ca-file="+logintest.Write(t, path+".wrong", "nothing"),
		"--requestheader-username-headers=X-Remote-User")
	_, starts := New(config(wrong))
	for _, err := range []error{wrong.Check(), starts} {
		if err == nil || !strings.Contains(err.Error(), "--requestheader-client-ca-file") {
			t.Errorf("a file without a certificate: %v", err)
		}
	}
	if _, err := New(
		Config{Options: o, OwnCAs: func() []byte { return []byte(ca) },
			Logger: slog.New(slog.DiscardHandler)}); err == nil ||
		!strings.Contains(err.Error(), "the cluster's own CA") {
		t.Errorf("the cluster's CA: %v", err)
	}
}

// FuzzCheckTokens: a file of static tokens is refused without a quotation of it, or names no user
// that is the cluster's own.
func FuzzCheckTokens(f *testing.F) {
	for _, seed := range []string{
		"s3cret-token,ann,1,\"dev,ops\"\n", "s3cret-token,ann,1\ns3cret-token,bob,2\n",
		"s3cret-token,system:masters,1\n",
		"s3cret-token,ann,1,\"system:masters\"\n", "s3cret-token,ann\n", "\"s3cret-token", "", "\n\n",
		"# s3cret-token\n", "\xff,\x00,1\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := checkTokens(data); err != nil {
			rest, mine := strings.CutPrefix(string(data), "s3cret-token,")
			if mine && !strings.Contains(rest, "s3cret") && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error has a token: %v", err)
			}
			return
		}
		lines := csv.NewReader(bytes.NewReader(data))
		lines.FieldsPerRecord = -1
		records, err := lines.ReadAll()
		if err != nil || len(records) == 0 {
			t.Fatalf("%q was taken: %v", data, err)
		}
		for _, r := range records {
			if isReserved(r[1]) {
				t.Errorf("%q was taken", data)
			}
			// A writer of the file has the server, so it may name administrators.
			if len(r) > 3 && slices.ContainsFunc(strings.Split(r[3], ","), func(g string) bool {
				return isReserved(g) && g != clusterusers.AdminGroup && g != user.SystemPrivilegedGroup &&
					g != user.AllAuthenticated
			}) {
				t.Errorf("%q was taken", data)
			}
		}
	})
}
