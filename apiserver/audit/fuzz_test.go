package audit

import "testing"

// FuzzPolicy: no file in the place of a policy crashes a server. One that is taken has rules, each
// of a level that exists.
func FuzzPolicy(f *testing.F) {
	const head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
	for _, seed := range []string{
		DefaultPolicy, "", "{}", head, head + "rules: [{level: Metadata}]\n", head + "rules: [{level: No}]\n",
		head + "rules: [{level: Request, users: [a], resources: [{group: '*', resources: ['pods/*', '*/status']}]}]\n",
		head +
			"rules: [{level: None, nonResourceURLs: ['/healthz*', '*/x']}]\nomitStages: [RequestReceived]\nomitManagedFields: true\n", `{"apiVersion":"audit.k8s.io/v1","kind":"Event","level":"None"}`,
		head + "rules: &a [*a]\n", head + "rules: [{level: Metadata, omitStages: [x]}]\nunknown: 1\n",
		"apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: Metadata}]\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		policy, err := parsePolicy(data)
		if err != nil {
			return
		}
		for _, rule := range policy.Rules {
			switch rule.Level {
			case "None", "Metadata", "Request", "RequestResponse":
			default:
				t.Errorf("%q was taken: the level %q", data, rule.Level)
			}
		}
		if len(policy.Rules) == 0 {
			t.Errorf("%q was taken: it has no rule", data)
		}
	})
}
