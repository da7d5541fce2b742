package clustertest

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/internal/needs"
)

// A red team has the credentials of users and pods without administrators' rights: a user who reads
// one namespace, an administrator of one namespace, the token of a running pod, and forgeries of a
// token. Each gets the access that docs/security.md grants, and nothing beyond.
func TestRedTeamOfUsers(t *testing.T) {
	needs.AllTests(t)
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 1, Agents: 1, Registry: images})
	u := newUsersOf(t, c)
	t.Run("AReaderOfOneNamespace", u.reader)
	t.Run("AnAdministratorOfOneNamespace", u.namespaceAdmin)
	t.Run("ForgedTokens", u.forgedTokens)
	t.Run("ATokenOfAPod", u.podToken)
}

// jewel is in a Secret of a namespace in which the team has no rights.
const jewel = "cullinan"

// usersOf are the team's namespace and the other one, which has the jewel.
type usersOf struct {
	*building
	other string
	root  *rest.Config // the administrator
}

func newUsersOf(t *testing.T, c *Cluster) *usersOf {
	t.Helper()
	b := newBuilding(t, c)
	u := &usersOf{building: b, other: b.Namespace + "-other"}
	var err error
	if u.root, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	b.Kubectl(t, "create", "namespace", u.other)
	b.Kubectl(t, "-n", u.other, "create", "secret", "generic", "crown", "--from-literal=jewel="+jewel)
	b.Apply(fmt.Sprintf(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reads}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reads}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reads}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: rita}
- {kind: ServiceAccount, name: robot, namespace: %s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: administers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: adam}]
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  nodeName: a1
  containers: [{name: hello, image: "barque.local/hello:1"}]
---
apiVersion: v1
kind: Pod
metadata: {name: worker}
spec:
  nodeName: a1
  serviceAccountName: robot
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: "busybox:1.36", command: [sleep, "1000000"]}]
`, b.Namespace))
	b.WaitReady("web")
	b.WaitReady("worker")
	return u
}

// hasJewel reports whether an answer has the jewel.
func hasJewel(body string) bool {
	return strings.Contains(body, jewel) || strings.Contains(body, base64.StdEncoding.EncodeToString([]byte(jewel)))
}

// refused makes requests that the user has no right to. Each must be answered by 403. The same
// request of the administrator must succeed, unless it is a write or impersonates: so it is a
// real one.
func (u *usersOf) refused(t *testing.T, config *rest.Config, attempts ...attempt) {
	t.Helper()
	for _, a := range attempts {
		code, body, err := u.try(config, a)
		if err != nil || code != http.StatusForbidden || hasJewel(body) {
			t.Errorf("%s: %d %s (%v)", &a, code, body, err)
		}
		if writes := a.method != http.MethodGet && !strings.Contains(a.path, "dryRun=All") &&
			a.protocol == ""; writes || slices.Contains(a.headers, "Impersonate-User") {
			continue
		}
		root := rest.CopyConfig(u.root)
		root.Host = config.Host
		code, body, err = u.try(root, a)
		if err != nil || code >= 400 {
			t.Errorf("the administrator, %s: %d %s (%v)", &a, code, body, err)
		}
	}
}

// allowed makes requests that the user has a right to.
func (u *usersOf) allowed(t *testing.T, config *rest.Config, attempts ...attempt) {
	t.Helper()
	for _, a := range attempts {
		if code, body, err := u.try(config, a); err != nil || code >= 400 {
			t.Errorf("%s: %d %s (%v)", &a, code, body, err)
		}
	}
}

func gets(paths ...string) (out []attempt) {
	for _, p := range paths {
		out = append(out, attempt{method: http.MethodGet, path: p})
	}
	return out
}

func post(path, body string) attempt {
	return attempt{method: http.MethodPost, path: path, body: body}
}

// as adds headers to requests.
func as(headers []string, attempts ...attempt) []attempt {
	out := make([]attempt, 0, len(attempts))
	for _, a := range attempts {
		a.headers = append(append([]string{}, a.headers...), headers...)
		out = append(out, a)
	}
	return out
}

const rbacPath = "/apis/rbac.authorization.k8s.io/v1"

// operatorsPaths are those of Barque's own API that administrators read.
var operatorsPaths = []string{
	"/barque/v1/status", "/barque/v1/gossip", "/barque/v1/diagnosis", "/barque/v1/hardening", "/barque/v1/keys",
	"/barque/v1/certificates",
	"/barque/v1/ca", "/barque/v1/revocations", "/barque/v1/encryption", "/barque/v1/tokens",
	"/barque/v1/audit?limit=10&since=2026-01-01T00:00:00Z", "/barque/v1/snapshots",
}

// beyond are requests that need more than rights in one namespace.
func (u *usersOf) beyond() []attempt {
	other := "/api/v1/namespaces/" + u.other
	all := gets(other+"/pods", other+"/secrets", other+"/secrets/crown", other+"/configmaps",
		other+"/secrets?watch=1&timeoutSeconds=1", other,
		"/api/v1/watch/namespaces/"+u.other+"/secrets?timeoutSeconds=1",
		"/api/v1/secrets", "/api/v1/secrets?fieldSelector=metadata.namespace%3D"+u.Namespace,
		"/api/v1/pods?watch=1&timeoutSeconds=1", "/api/v1/namespaces",
		"/api/v1/namespaces/kube-system/secrets",
		"/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", "/api/v1/nodes",
		"/api/v1/nodes/a1",
		"/api/v1/persistentvolumes", "/apis/apps/v1/deployments", rbacPath+"/clusterroles",
		rbacPath+"/clusterrolebindings", rbacPath+"/namespaces/"+u.other+"/roles",
		"/apis/certificates.k8s.io/v1/certificatesigningrequests", "/apis/storage.k8s.io/v1/csinodes",
		"/apis/apiregistration.k8s.io/v1/apiservices",
		"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"/api/v1/nodes/a1/proxy/pods", "/api/v1/nodes/s1/proxy/pods", "/api/v1/nodes/a1/proxy/configz",
		"/api/v1/nodes/https:a1:10250/proxy/pods",
		"/metrics", "/debug/pprof/heap")
	all = append(all, gets(operatorsPaths...)...)
	all = append(all,
		post("/barque/v1/tokens", `{"role":"server"}`), post("/barque/v1/keys", ""),
		post("/barque/v1/snapshot-save", ""), post("/barque/v1/snapshot-restore", ""),
		post("/barque/v1/members/s1?change=remove", ""),
		post("/barque/v1/ca?change=begin", ""), post("/barque/v1/encryption?change=disable", ""),
		post("/barque/v1/revocations", "{}"), post("/barque/v1/certificates", ""),
		post(other+"/serviceaccounts/default/token",
			`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`),
		post("/api/v1/namespaces/kube-system/serviceaccounts/default/token",
			`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`),
		post("/apis/authentication.k8s.io/v1/tokenreviews",
			`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"x"}}`),
		post("/apis/authorization.k8s.io/v1/subjectaccessreviews",
			`{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"x"}}`),
		post(rbacPath+"/clusterrolebindings?dryRun=All",
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"mine"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"rita"}]}`),
		post(rbacPath+"/namespaces/"+u.other+"/rolebindings?dryRun=All", roleBinding("view", "rita")),
	)
	// As another user: by the headers of impersonation, and of a front proxy.
	for _, headers := range [][]string{{"Impersonate-User", "barque:admin", "Impersonate-Group", "system:masters"},
		{"Impersonate-User", "system:serviceaccount:kube-system:default"},
		{"Impersonate-User", "system:node:a1", "Impersonate-Group", "system:nodes"},
		{"X-Remote-User", "barque:admin", "X-Remote-Group", "system:masters"}} {
		all = append(all, attempt{method: http.MethodGet, path: other + "/secrets/crown", headers: headers})
	}
	return all
}

func roleBinding(clusterRole, user string) string {
	return fmt.Sprintf(
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"mine"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},`+
			`"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%q}]}`, clusterRole, user)
}

// streams are those into a pod. Reading is no right to any, in whatever way they are opened.
func streams(pod string) []attempt {
	return []attempt{
		{method: http.MethodGet, path: pod + "/exec?command=id&stdout=1", protocol: "websocket"},
		{method: http.MethodPost, path: pod + "/exec?command=id&stdout=1", protocol: "SPDY/3.1",
			headers: []string{"X-Stream-Protocol-Version", "v4.channel.k8s.io"}},
		{method: http.MethodGet, path: pod + "/attach?stdout=1", protocol: "websocket"},
		{method: http.MethodGet, path: pod + "/portforward?ports=8080", protocol: "SPDY/3.1"},
		{method: http.MethodPost, path: pod + "/portforward?ports=8080", protocol: "SPDY/3.1"},
	}
}

// atKubelet is the same client at a node's own server.
func (b *building) atKubelet(config *rest.Config, node string) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = "https://" + b.at[node] + ":10250"
	return config
}

// joiningPaths are those for machines. Neither a user nor a pod is one.
var joiningPaths = map[string]string{"shared-key": `{"digest":"00"}`, "gossip-keys": `{}`, "renew": `{}`,
	"revoked": `{}`}

// noMachine makes the requests of joining machines.
func (u *usersOf) noMachine(t *testing.T, config *rest.Config) {
	t.Helper()
	for path, body := range joiningPaths {
		a := post("/barque/join/v1/"+path, body)
		if code, answer, err := u.try(config, a); err != nil ||
			code != http.StatusUnauthorized && code != http.StatusForbidden {
			t.Errorf("%s: %d %s (%v)", &a, code, answer, err)
		}
	}
}

// aroundRBAC are spellings of the Secret's path that a filter may read in another way than the
// authorizer.
func (u *usersOf) aroundRBAC() []string {
	own, other := "/api/v1/namespaces/"+u.Namespace, u.other+"/secrets/crown"
	return []string{
		own + "/../" + other, own + "/%2e%2e/" + other, own + "%2f..%2f" + other, own + "/secrets/../../" + other,
		own + "/secrets/..%2f..%2f" + other, "//api/v1/namespaces/" + other,
		"/api//v1/namespaces/" + other, "/API/v1/namespaces/" + other, "/api/v1/Namespaces/" + other,
		"/healthz/../api/v1/namespaces/" + other, "/healthz/%2e%2e/api/v1/namespaces/" + other,
		"/version;/api/v1/namespaces/" + other, "/api/v1/namespaces/" + other + "%00",
		"/api/v1/namespaces/" + other + "?namespace=" + u.Namespace,
		"/barque/join/v1/../../../api/v1/namespaces/" + other, "/openapi/v2/../../api/v1/namespaces/" + other,
		"/apis/../api/v1/namespaces/" + other,
	}
}

// hidden fails when another spelling of the Secret's path gets it.
func (u *usersOf) hidden(t *testing.T, config *rest.Config) {
	t.Helper()
	for _, path := range u.aroundRBAC() {
		code, body, err := u.try(config, attempt{method: http.MethodGet, path: path})
		if err != nil || code < 300 || code >= 500 || hasJewel(body) {
			t.Errorf("%s: %d %s (%v)", path, code, body, err)
		}
	}
}

// reader: a user with all that get, list and watch give in one namespace.
func (u *usersOf) reader(t *testing.T) {
	made := u.madeUser("rita", "readers")
	rita := made.config(u.building)
	own := "/api/v1/namespaces/" + u.Namespace
	u.allowed(t, rita,
		gets(own+"/pods", own+"/secrets", own+"/pods/web/log", own+"/pods?watch=1&timeoutSeconds=1",
			rbacPath+"/namespaces/"+u.Namespace+"/roles")...)
	u.refused(t, rita, u.beyond()...)
	u.refused(t, rita, streams(own+"/pods/web")...)
	pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"mine"},"spec":{"containers":[{"name":"c","image":"x"}]}}`
	merge := []string{"Content-Type", "application/merge-patch+json"}
	serverSide := []string{"Content-Type", "application/apply-patch+yaml"}
	everything := `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"reads"},"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`
	u.refused(t, rita,
		post(own+"/pods?dryRun=All", pod),
		post(own+"/configmaps?dryRun=All", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"mine"}}`),
		post(own+"/serviceaccounts/robot/token",
			`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`),
		post(own+"/pods/web/eviction?dryRun=All",
			`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"web"}}`),
		attempt{method: http.MethodDelete, path: own + "/pods/web?dryRun=All"},
		attempt{method: http.MethodDelete, path: own + "/secrets?dryRun=All"},
		attempt{method: http.MethodPatch, path: own + "/pods/web/ephemeralcontainers?dryRun=All",
			body: `{"metadata":{"labels":{"a":"b"}}}`, headers: merge},
		post(rbacPath+"/namespaces/"+u.Namespace+"/rolebindings?dryRun=All", roleBinding("cluster-admin", "rita")),
		attempt{method: http.MethodPatch, path: rbacPath + "/namespaces/" + u.Namespace + "/roles/reads?dryRun=All",
			body: `{"rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`, headers: merge},
		attempt{method: http.MethodPatch,
			path: rbacPath + "/namespaces/" + u.Namespace + "/roles/reads?dryRun=All&fieldManager=me&force=true",
			body: everything, headers: serverSide},
	)
	u.refused(t, rita,
		as([]string{"Impersonate-User", "system:serviceaccount:" + u.Namespace + ":robot"}, gets(own+"/pods")...)...)
	u.hidden(t, rita)
	u.noMachine(t, rita)
	for _, node := range []string{"a1", "s1"} {
		u.refused(t, u.atKubelet(rita, node), gets("/pods", "/metrics", "/configz", "/stats/summary")...)
	}
	u.refused(t, u.atKubelet(rita, "a1"),
		attempt{method: http.MethodPost, path: "/exec/" + u.Namespace + "/web/hello?command=id&output=1"})
	u.refused(t, u.atKubelet(rita, "a1"), gets("/containerLogs/"+u.Namespace+"/web/hello")...)
}

// namespaceAdmin: the role admin in one namespace gives accounts and roles there, and no way out.
func (u *usersOf) namespaceAdmin(t *testing.T) {
	made := u.madeUser("adam", "owners")
	adam := made.config(u.building)
	own, roles := "/api/v1/namespaces/"+u.Namespace, rbacPath+"/namespaces/"+u.Namespace
	u.allowed(t, adam, gets(own+"/secrets", own+"/pods")...)
	u.allowed(t, adam, post(roles+"/rolebindings?dryRun=All", roleBinding("view", "rita")))
	u.allowed(t, adam,
		as([]string{"Impersonate-User", "system:serviceaccount:" + u.Namespace + ":robot"}, gets(own+"/pods")...)...)
	u.refused(t, adam, u.beyond()...)
	u.hidden(t, adam)
	u.noMachine(t, adam)
	role := func(rule string) string {
		return `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"mine"},"rules":[` +
			rule + `]}`
	}
	u.refused(t, adam,
		post(roles+"/rolebindings?dryRun=All", roleBinding("cluster-admin", "adam")),
		post(roles+"/rolebindings?dryRun=All", roleBinding("system:node", "adam")),
		post(roles+"/roles?dryRun=All", role(`{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}`)),
		post(roles+"/roles?dryRun=All",
			role(`{"apiGroups":["rbac.authorization.k8s.io"],"resources":["roles"],"verbs":["escalate","bind"]}`)),
		post(roles+"/roles?dryRun=All",
			role(`{"apiGroups":[""],"resources":["users","groups"],"verbs":["impersonate"]}`)),
	)
	if code, body, err := u.try(adam,
		post(own+"/pods?dryRun=All",
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"mine"},"spec":{"serviceAccountName":"robot","containers":[{"name":"c","image":"x"}]}}`)); err != nil || code != http.StatusCreated {
		t.Errorf("a pod in the own namespace: %d %s (%v)", code, body, err)
	}
	// Impersonation of the namespace's accounts gives no rights that these accounts lack.
	u.refused(t, adam,
		as([]string{"Impersonate-User", "system:serviceaccount:" + u.Namespace + ":robot"},
			gets("/api/v1/namespaces/"+u.other+"/secrets/crown", "/api/v1/nodes")...)...)
}

// podToken: the token of a pod counts for its account while the pod is there, and for nothing then,
// also when another pod has the name.
func (u *usersOf) podToken(t *testing.T) {
	const file = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	take := func() *rest.Config {
		config := u.Space.admin()
		config.BearerToken = strings.TrimSpace(u.K("exec", "worker", "--", "cat", file))
		return config
	}
	stolen := take()
	own := "/api/v1/namespaces/" + u.Namespace
	u.allowed(t, stolen, gets(own+"/pods", own+"/secrets")...)
	u.refused(t, stolen, u.beyond()...)
	u.refused(t, stolen, streams(own+"/pods/web")...)
	u.hidden(t, stolen)
	u.noMachine(t, stolen)
	for _, node := range []string{"a1", "s1"} {
		u.refused(t, u.atKubelet(stolen, node), gets("/pods", "/configz")...)
	}
	u.refused(t, stolen,
		post(own+"/serviceaccounts/robot/token",
			`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`))
	u.K("delete", "pod", "worker")
	void := func(what string) {
		Eventually(t, deadline, what, func(context.Context) error {
			if code, body, err := u.try(stolen, gets(own + "/pods")[0]); err != nil || code != http.StatusUnauthorized {
				return fmt.Errorf("%d %s (%v)", code, body, err)
			}
			return nil
		})
	}
	void("the token is void after its pod")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "worker"},
		Spec: corev1.PodSpec{NodeName: "a1", ServiceAccountName: "robot",
			Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36", Command: []string{"sleep", "1000000"}}}}}
	if _, err := u.Client.CoreV1().Pods(u.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	u.WaitReady("worker")
	u.allowed(t, take(), gets(own+"/pods")...)
	void("the token is void with another pod of the name")
	u.noMachine(t, stolen)
}
