package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/barque/barque/apiserver/audit"
	"github.com/barque/barque/apiserver/authorizers"
	"github.com/barque/barque/apiserver/encryption/provider"
	"github.com/barque/barque/apiserver/logins"
	"github.com/barque/barque/cmd/barque/node/options"
)

// checkServer checks a server's flags about logins, authorization, the audit log and encryption.
func checkServer(t *testing.T, args ...string) error {
	t.Helper()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	o := &options.Options{Audit: audit.NewOptions(), Logins: logins.NewOptions(),
		Authorization: authorizers.NewOptions(), Providers: &provider.Options{}, PeerPort: 1, MinVoters: 1}
	o.Audit.AddFlags(flags)
	o.Logins.AddFlags(flags)
	o.Authorization.AddFlags(flags)
	o.Providers.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o.CheckServer()
}

// faulty is the content of a file, and what the error about it has to name.
type faulty struct{ content, names string }

// commonFaults are those of files of any form. A test has no content for the first three.
var commonFaults = map[string]faulty{
	"missing":    {"", "no such file or directory"},
	"directory":  {"", "is a directory"},
	"unreadable": {"", "too many levels of symbolic links"}, // also for root
	"empty":      {"", ""},
	"comments":   {"# later\n\n", ""},
	"text":       {"hello\n", ""},
	"binary":     {"\x00\x01\xff", ""},
}

// objectFaults are those of a file with an object.
func objectFaults(apiVersion, kind, field string) map[string]faulty {
	head := "apiVersion: " + apiVersion + "\nkind: " + kind + "\n"
	return map[string]faulty{
		"no YAML":       {head + "a: [b\n", "line"},
		"list":          {"- a\n", "apiVersion: " + apiVersion},
		"unknown field": {head + "nonsense: 1\n", "nonsense"},
		"field twice":   {head + field + ": []\n" + field + ": []\n", field},
		"wrong type":    {head + field + ": 1\n", field},
		"no kind":       {"apiVersion: " + apiVersion + "\n" + field + ": []\n", "kind: " + kind},
		"another kind":  {"apiVersion: v1\nkind: ConfigMap\n", "kind: " + kind},
		"kind is wrong": {"apiVersion: " + apiVersion + "\nkind: [a]\n", "kind: " + kind},
		"version":       {"apiVersion: " + apiVersion + "7\nkind: " + kind + "\n", "apiVersion: " + apiVersion},
	}
}

// kubeconfigFaults are those of a webhook's kubeconfig.
func kubeconfigFaults() map[string]faulty {
	const head = "apiVersion: v1\nkind: Config\n"
	const context = "contexts: [{name: c, context: {cluster: k, user: u}}]\ncurrent-context: c\nusers: [{name: u, user: {}}]\n"
	faults := objectFaults("v1", "Config", "clusters")
	for name, f := range map[string]faulty{
		"misspelled server": {head + "clusters: [{name: k, cluster: {sever: 'https://a'}}]\n" + context,
			"clusters[0].cluster.sever"},
		"no context": {head + "clusters: [{name: k, cluster: {server: 'https://a'}}]\n", "current-context"},
		"a missing context": {head + "clusters: [{name: k, cluster: {server: 'https://a'}}]\ncurrent-context: d\n",
			`"d"`},
		"a missing cluster": {head + context, `"k"`},
		"a missing user": {
			head +
				"clusters: [{name: k, cluster: {server: 'https://a'}}]\ncontexts: [{name: c, context: {cluster: k, user: u}}]\ncurrent-context: c\n", `"u"`},
		"no server":          {head + "clusters: [{name: k, cluster: {}}]\n" + context, `"k"`},
		"a URL that is none": {head + "clusters: [{name: k, cluster: {server: 'a b'}}]\n" + context, "a b"},
		"a missing CA": {
			head + "clusters: [{name: k, cluster: {server: 'https://a', certificate-authority: /nowhere}}]\n" + context,
			"certificate-authority /nowhere"},
		"a CA that is none": {
			head + "clusters: [{name: k, cluster: {server: 'https://a', certificate-authority-data: aGVsbG8=}}]\n" +
				context, "PEM"},
	} {
		faults[name] = f
	}
	return faults
}

// TestWrongFiles: the error about a wrong file names the flag and the file, once each, the place in
// it, and the next step, in the words of users.
func TestWrongFiles(t *testing.T) {
	hook := func(path string) string {
		return "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: Webhook, name: a, webhook: {timeout: 3s, authorizedTTL: 5m, unauthorizedTTL: 30s, " +
			"subjectAccessReviewVersion: v1, matchConditionSubjectAccessReviewVersion: v1, failurePolicy: Deny, connectionInfo: {type: KubeConfigFile, kubeConfigFile: " + path + "}}}]\n"
	}
	for _, c := range []struct {
		flag   string
		beside []string
		// within returns the content of the flag's file around the path of the faulty one; nil: the
		// flag's file is faulty.
		within func(path string) string
		faults map[string]faulty
		// secret is set for a file whose content is in no error.
		secret bool
	}{
		{flag: "--authentication-config",
			faults: objectFaults("apiserver.config.k8s.io/v1", "AuthenticationConfiguration", "jwt")},
		{flag: "--authentication-token-webhook-config-file", faults: kubeconfigFaults()},
		{flag: "--token-auth-file", faults: map[string]faulty{"quotes": {"a,b,\"c\n", "line 1"}}},
		{flag: "--basic-auth-file",
			faults: map[string]faulty{"a password in clear": {"ann:secret\n", "line 1"},
				"a long line": {strings.Repeat("a", 100000), "bytes"}}},
		{flag: "--oidc-ca-file", beside: []string{"--oidc-issuer-url=https://a", "--oidc-client-id=a"}},
		{flag: "--requestheader-client-ca-file", beside: []string{"--requestheader-username-headers=X-Remote-User"}},
		{flag: "--authorization-config",
			faults: objectFaults("apiserver.config.k8s.io/v1", "AuthorizationConfiguration", "authorizers")},
		{flag: "--authorization-config", within: hook, faults: kubeconfigFaults()},
		{flag: "--authorization-webhook-config-file", beside: []string{"--authorization-mode=RBAC,Webhook"},
			faults: kubeconfigFaults()},
		{flag: "--authorization-policy-file", beside: []string{"--authorization-mode=RBAC,ABAC"},
			faults: map[string]faulty{
				"unknown field": {`{"nonsense":1}`, "nonsense"}, "wrong type": {"\n" + `{"spec":1}`, "line 2"},
				"a long line": {"#" + strings.Repeat("a", 2<<20), "bytes"}}},
		{flag: "--audit-policy-file", faults: objectFaults("audit.k8s.io/v1", "Policy", "rules")},
		{flag: "--audit-webhook-config-file", faults: kubeconfigFaults()},
		{flag: "--encryption-provider-config",
			faults: objectFaults("apiserver.config.k8s.io/v1", "EncryptionConfiguration", "resources"), secret: true},
	} {
		for _, faults := range []map[string]faulty{commonFaults, c.faults} {
			for name, fault := range faults {
				title := strings.TrimLeft(c.flag, "-") + "/" + name
				if c.within != nil {
					title = strings.TrimLeft(c.flag, "-") + " webhook/" + name
				}
				t.Run(title, func(t *testing.T) {
					dir := t.TempDir()
					path := filepath.Join(dir, "faulty")
					given := path
					if c.within != nil {
						given = filepath.Join(dir, "config")
						if err := os.WriteFile(given, []byte(c.within(path)), 0o600); err != nil {
							t.Fatal(err)
						}
					}
					var err error
					switch name {
					case "missing":
					case "directory":
						err = os.Mkdir(path, 0o700)
					case "unreadable":
						err = os.Symlink(path, path)
					default:
						err = os.WriteFile(path, []byte(fault.content), 0o600)
					}
					if err != nil {
						t.Fatal(err)
					}
					err = checkServer(t, append(slices.Clone(c.beside), c.flag+"="+given)...)
					if err == nil {
						t.Fatal("it is taken")
					}
					text := err.Error()
					for _, once := range []string{c.flag + " " + given + ": ", path} {
						if strings.Count(text, once) != 1 {
							t.Errorf("%q: want %q once", text, once)
						}
					}
					if strings.Count(text, c.flag) != 1 {
						t.Errorf("%q: want the flag once", text)
					}
					if names := fault.names; !strings.Contains(text, names) &&
						(!c.secret ||
							!strings.Contains(text, "it could show a key") &&
								!strings.Contains(text, "it may be a key")) {
						t.Errorf("%q: want %q", text, names)
					}
					if !slices.ContainsFunc(
						[]string{"want ", "correct ", "put it there", "look at", "Look at", "take ", "make it", "give ",
							"not shown"}, func(step string) bool { return strings.Contains(text, step) }) {
						t.Errorf("%q: want a next step", text)
					}
					for _, word := range []string{"__internal", "no configuration has been provided",
						"KUBERNETES_MASTER", "invalid configuration", "json:", "yaml:", "struct", "Go value", "scheme",
						"strict decoding", "is missing in", "v1.", "bufio", "crypto/", "stat ", "open ", "\n", "\x00"} {
						if strings.Contains(text, word) {
							t.Errorf("%q has %q", text, word)
						}
					}
				})
			}
		}
	}
}
