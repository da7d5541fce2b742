package clients

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// step is a command of kubectl and its expected output.
type step struct {
	args  string // split at spaces; a part in double quotes stays whole
	stdin string
	want  []string
	not   string // must not be printed
	fails bool   // it must
	again bool   // it is repeated until it prints that: something else has to happen first
}

var parts = regexp.MustCompile(`"[^"]*"|\S+`)

func (s step) fields() []string {
	all := parts.FindAllString(s.args, -1)
	for i, a := range all {
		all[i] = strings.Trim(a, `"`)
	}
	return all
}

func (s step) try(run kubectl) error {
	out, err := run(s.stdin, s.fields()...)
	if s.fails != (err != nil) {
		return fmt.Errorf("kubectl %s: %v\n%s", s.args, err, out)
	}
	for _, want := range s.want {
		if !strings.Contains(out, want) {
			return fmt.Errorf("kubectl %s: %q is missing in\n%s", s.args, want, out)
		}
	}
	if s.not != "" && strings.Contains(out, s.not) {
		return fmt.Errorf("kubectl %s: %q is in\n%s", s.args, s.not, out)
	}
	return nil
}

func runSteps(t *testing.T, run kubectl, steps []step) {
	t.Helper()
	for _, s := range steps {
		if s.again {
			eventually(t, "kubectl "+s.args, func(context.Context) error { return s.try(run) })
		} else if err := s.try(run); err != nil {
			t.Error(err)
		}
	}
}

const web = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: blue}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: "nginx:1.21.6", ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
`

var red = strings.Replace(web, "blue", "red", 1)

// kubectlSteps are run in a namespace of their own, which is empty at first. Subtests depend on
// those before.
var kubectlSteps = []struct {
	name  string
	steps []step
}{
	{"Apply", []step{
		{args: "diff -f -", stdin: web, want: []string{"+  colour: blue", "+kind: Deployment"}, fails: true},
		{args: "apply -f - --dry-run=server", stdin: web,
			want: []string{"configmap/settings created (server dry run)"}},
		{args: "get cm settings", want: []string{"NotFound"}, fails: true},
		{args: "apply -f -", stdin: web,
			want: []string{"configmap/settings created", "deployment.apps/web created", "service/web created"}},
		{args: "apply -f -", stdin: web,
			want: []string{"configmap/settings unchanged", "deployment.apps/web unchanged", "service/web unchanged"}},
		{args: "diff -f -", stdin: web, not: "+"},
		{args: "diff -f -", stdin: red, want: []string{"-  colour: blue", "+  colour: red"}, fails: true},
		{args: "apply -f -", stdin: red,
			want: []string{"configmap/settings configured", "deployment.apps/web unchanged"}},
		{args: "apply view-last-applied cm settings", want: []string{"colour: red"}},
		{args: "apply -f -", stdin: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndaata: {}\n",
			want: []string{`unknown field "daata"`}, fails: true},
		{args: "apply -f - --validate=warn",
			stdin: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: warned}\ndaata: {}\n",
			want:  []string{`Warning: unknown field "daata"`, "configmap/warned created"}},
		{args: "apply -f -", stdin: "apiVersion: nosuch/v1\nkind: Nothing\nmetadata: {name: x}\n",
			want: []string{`no matches for kind "Nothing" in version "nosuch/v1"`}, fails: true},
		{args: "replace -f -", stdin: red,
			want: []string{"configmap/settings replaced", "deployment.apps/web replaced", "service/web replaced"}},
		{args: "apply -f - --prune -l app=none --prune-allowlist=core/v1/ConfigMap",
			stdin: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: pruned, labels: {app: none}}\n",
			want:  []string{"configmap/pruned created"}},
		{args: "apply -f - --prune -l app=none --prune-allowlist=core/v1/ConfigMap",
			stdin: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept, labels: {app: none}}\n",
			want:  []string{"configmap/kept created", "configmap/pruned pruned"}},
	}},
	{"ServerSideApply", []step{
		{args: "apply --server-side -f -", stdin: ssa("one"), want: []string{"configmap/shared serverside-applied"}},
		{args: "apply --server-side --field-manager other -f -", stdin: ssa("two"), fails: true,
			want: []string{`Apply failed with 1 conflict: conflict with "kubectl": .data.key`}},
		{args: "apply --server-side --field-manager other --force-conflicts -f -", stdin: ssa("two"),
			want: []string{"configmap/shared serverside-applied"}},
		{args: "get cm shared -o jsonpath={.data.key},{.metadata.managedFields[*].manager} --show-managed-fields",
			want: []string{"two,other"}},
		{args: "diff --server-side --field-manager other -f -", stdin: ssa("three"),
			want: []string{"-  key: two", "+  key: three"}, fails: true},
		{args: "apply --server-side -f -", stdin: red,
			want: []string{"configmap/settings serverside-applied", "deployment.apps/web serverside-applied"}},
		{args: "apply --server-side --subresource=status --field-manager status -f -",
			stdin: "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nstatus: {loadBalancer: {ingress: [{ip: 10.1.2.3}]}}\n",
			want:  []string{"may only be used when `spec.type` is 'LoadBalancer'"}, fails: true},
		{args: "apply -f -", stdin: web, want: []string{"configmap/settings configured"}},
	}},
	{"Patch", []step{
		{args: `patch cm settings -p {"data":{"a":"1","b":"1"}}`, want: []string{"configmap/settings patched"}},
		{args: `patch cm settings -p {"data":{"a":"1"}}`, want: []string{"configmap/settings patched (no change)"}},
		{args: `patch cm settings --type merge -p {"data":{"a":null,"b":"2"}}`,
			want: []string{"configmap/settings patched"}},
		{args: `patch cm settings --type json -p [{"op":"test","path":"/data/b","value":"3"}]`, fails: true},
		{args: `patch cm settings --type json -p [{"op":"add","path":"/data/c","value":"3"},{"op":"move","from":"/data/b","path":"/data/d"}]`},
		{args: "get cm settings -o jsonpath={.data}", want: []string{`{"c":"3","colour":"blue","d":"2"}`}},
		{args: `patch deploy web --type strategic -p {"spec":{"template":{"spec":{"containers":[{"name":"d","image":"busybox:1.36"}]}}}}`},
		{args: "get deploy web -o jsonpath={.spec.template.spec.containers[*].name}", want: []string{"d c"}},
		{args: `patch deploy web --type strategic -p {"spec":{"template":{"spec":{"containers":[{"name":"d","$patch":"delete"}]}}}}`},
		{args: "get deploy web -o jsonpath={.spec.template.spec.containers[*].name}", want: []string{"c"}, not: "d"},
		{args: `patch deploy web --subresource scale --type merge -p {"spec":{"replicas":3}}`,
			want: []string{"scale.autoscaling/web patched"}},
		{args: `patch svc web --type merge -p {"spec":{"clusterIP":"10.43.9.9"}}`, want: []string{"field is immutable"},
			fails: true},
		{args: `patch deploy web -p {"spec":{"selector":{"matchLabels":{"x":"y"}}}}`,
			want: []string{"The Deployment \"web\" is invalid"}, fails: true},
		{args: `patch cm settings --type merge -p {"immutable":true}`},
		{args: `patch cm settings -p {"data":{"a":"9"}}`, want: []string{"field is immutable when `immutable` is set"},
			fails: true},
		{args: `patch cm nosuch -p {}`, want: []string{`configmaps "nosuch" not found`}, fails: true},
	}},
	{"Explain", []step{
		{args: "explain pods", want: []string{"KIND:       Pod", "VERSION:    v1", "spec\t<PodSpec>"}},
		{args: "explain deployment.spec.strategy",
			want: []string{"GROUP:      apps", "type\t<string>", "rollingUpdate\t<RollingUpdateDeployment>"}},
		{args: "explain svc.spec.ports --recursive", want: []string{"port\t<integer> -required-"}},
		{args: "explain crd.spec.names --output=plaintext-openapiv2", want: []string{"RESOURCE: names <Object>"}},
		{args: "explain pods.nosuch", want: []string{`field "nosuch" does not exist`}, fails: true},
	}},
	{"CustomResources", []step{
		{args: "apply -f -", stdin: greetingCRD,
			want: []string{"customresourcedefinition.apiextensions.k8s.io/greetings.clients.example.org created"}},
		{args: "wait --for=condition=Established crd/greetings.clients.example.org --timeout=2m",
			want: []string{"condition met"}},
		{args: "api-resources --api-group=clients.example.org",
			want: []string{"greetings", "hi", "clients.example.org/v1", "true", "Greeting"}, again: true},
		{args: "explain greetings.spec",
			want: []string{"GROUP:      clients.example.org", "What the user wants.", "text\t<string> -required-",
				"The words to say."}, again: true},
		{args: "apply -f -", stdin: custom("hello"), want: []string{"greeting.clients.example.org/one created"},
			again: true},
		{args: "apply -f -", stdin: custom("good day"), want: []string{"configured"}},
		{args: "apply --server-side --field-manager other -f -", stdin: custom("bye"), want: []string{`.spec.text`},
			fails: true},
		{args: "apply -f -", stdin: custom("nothing"), want: []string{"say something"}, fails: true},
		{args: "apply -f -", stdin: strings.Replace(custom("x"), "text:", "txet:", 1),
			want: []string{`unknown field "spec.txet"`}, fails: true},
		{args: "get hi", want: []string{"NAME   TEXT       AGE", "one    good day"}},
		{args: "get greetings --field-selector spec.language=de", want: []string{"one"}},
		{args: "get greetings --field-selector spec.language=fr", want: []string{"No resources found"}},
		{args: "scale greeting/one --replicas=4", want: []string{"greeting.clients.example.org/one scaled"}},
		{args: "get greeting one -o jsonpath={.spec.copies},{.metadata.generation}", want: []string{"4,3"}},
		{args: `patch greeting one --type merge -p {"spec":{"text":"patched"}}`, want: []string{"patched"}},
		{args: `patch greeting one -p {"spec":{"text":"patched"}} --type strategic`, want: []string{"strategic"},
			fails: true},
		{args: `patch greeting one --subresource=status --type merge -p {"status":{"text":"seen"}}`},
		{args: "wait --for=jsonpath={.status.text}=seen greeting/one --timeout=2m", want: []string{"condition met"}},
		{args: "describe greeting one", want: []string{"Kind:         Greeting", "Text:      patched"}},
		{args: "label hi one a=b", want: []string{"labeled"}},
		{args: "get all", want: []string{"greeting.clients.example.org/one"}},
		{args: "delete crd greetings.clients.example.org", want: []string{"deleted"}},
		{args: "get hi", fails: true, again: true}, // its message depends on kubectl's cache
	}},
	{"Show", []step{
		{args: "get deploy web -o wide",
			want: []string{"NAME   READY   UP-TO-DATE   AVAILABLE   AGE   CONTAINERS   IMAGES         SELECTOR",
				"app=web"}},
		{args: "get rs -o wide", want: []string{"DESIRED", "CURRENT", "CONTAINERS", "pod-template-hash="}},
		{args: "get pods -o wide",
			want: []string{"NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "NOMINATED NODE",
				"READINESS GATES", "Pending"}, again: true},
		{args: "get svc -o wide",
			want: []string{"NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE", "SELECTOR", "80/TCP",
				"app=web"}},
		{args: "get cm,sa", want: []string{"configmap/settings", "serviceaccount/default", "DATA", "SECRETS"}},
		{args: "get cm -o custom-columns=N:.metadata.name,C:.data.colour",
			want: []string{"N ", "C", "settings", "blue"}},
		{args: "get cm settings -o name", want: []string{"configmap/settings"}},
		{args: "get cm --sort-by=.metadata.creationTimestamp --no-headers", want: []string{"settings"}, not: "NAME"},
		{args: "get cm --chunk-size=1", want: []string{"settings", "shared", "kube-root-ca.crt"}},
		{args: "get cm -A --field-selector metadata.name=settings", want: []string{"NAMESPACE", "settings"}},
		{args: "get pods --field-selector status.phase=Running", want: []string{"No resources found"}},
		{args: "get pods --field-selector nosuch=x", want: []string{"field label not supported"}, fails: true},
		{args: "get cm -l app=none,!x", want: []string{"kept"}},
		{args: `get cm -l "app in (none,other)"`, want: []string{"kept"}},
		{args: `get cm -l "app in none"`, want: []string{"unable to parse requirement"}, fails: true},
		{args: "get nosuch", want: []string{`the server doesn't have a resource type "nosuch"`}, fails: true},
		{args: "get cm nosuch", want: []string{`Error from server (NotFound): configmaps "nosuch" not found`},
			fails: true},
		{args: "get deploy/web cm/settings -o json", want: []string{`"kind": "List"`}},
		{args: "describe deploy web",
			want: []string{"Replicas:", "desired", "Pod Template:", "StrategyType:", "RollingUpdate", "Events:"}},
		{args: "describe svc web", want: []string{"IP Family Policy:", "SingleStack", "Port:", "80/TCP"}},
		{args: "get --raw /api/v1/namespaces/default/serviceaccounts/default",
			want: []string{`"kind":"ServiceAccount"`}},
		{args: "api-resources", want: []string{"configmaps", "deployments", "apps/v1", "roles"}},
		{args: "api-resources --verbs=list --namespaced=false -o name",
			want: []string{"nodes", "clusterroles.rbac.authorization.k8s.io"}, not: "configmaps"},
		{args: "api-versions", want: []string{"apps/v1", "v1", "rbac.authorization.k8s.io/v1"}},
		{args: "version", want: []string{"Server Version: v1."}},
		{args: "cluster-info", want: []string{"Kubernetes control plane"}},
		{args: "get events", want: []string{"LAST SEEN", "REASON", "ScalingReplicaSet"}, again: true},
		{args: "events --for deployment/web", want: []string{"ScalingReplicaSet"}, again: true},
	}},
	{"Labels", []step{
		{args: "label cm kept a=b", want: []string{"configmap/kept labeled"}},
		{args: "label cm kept a=c", want: []string{"already has a value"}, fails: true},
		{args: "label cm kept a=c --overwrite", want: []string{"labeled"}},
		{args: "get cm kept -L a", want: []string{"NAME   DATA   AGE", "A", "c"}},
		{args: "label cm kept a-", want: []string{"unlabeled"}},
		{args: "label cm kept bad^key=x", want: []string{"bad^key"}, fails: true},
		{args: "label cm -l app=none all=yes", want: []string{"configmap/kept labeled"}},
		{args: "annotate cm kept note=hello", want: []string{"annotated"}},
		{args: "annotate cm kept --list", want: []string{"note=hello"}},
		{args: "annotate cm kept note-", want: []string{"annotated"}},
	}},
	{"Access", []step{
		{args: "auth can-i create pods", want: []string{"yes"}},
		{args: "auth can-i create pods --as system:serviceaccount:default:default", want: []string{"no"}, fails: true},
		{args: "create role reader --verb=get,list --resource=pods,pods/log", want: []string{"created"}},
		{args: "create rolebinding reader --role=reader --user=bob --serviceaccount=default:robot",
			want: []string{"created"}},
		{args: "auth can-i list pods --as bob", want: []string{"yes"}},
		{args: "auth can-i get pods --subresource=log --as bob", want: []string{"yes"}},
		{args: "auth can-i --list --as bob", want: []string{"pods/log", "[get list]", "selfsubjectaccessreviews"}},
		{args: "get cm --as bob",
			want: []string{
				`Error from server (Forbidden): configmaps is forbidden: User "bob" cannot list resource "configmaps" in API group "" in the namespace`}, fails: true},
		{args: "auth whoami --as bob --as-group devs", want: []string{"bob", "devs", "system:authenticated"}},
		{args: "auth reconcile -f -",
			stdin: "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: lookers}\nrules:\n- {apiGroups: [\"\"], resources: [secrets], verbs: [get]}\n", want: []string{"clusterrole.rbac.authorization.k8s.io/lookers reconciled"}},
		{args: "create rolebinding lookers --clusterrole=lookers --user=bob", want: []string{"created"}},
		{args: "auth can-i get secrets --as bob", want: []string{"yes"}},
		{args: "create sa robot", want: []string{"serviceaccount/robot created"}},
		{args: "create token nosuch", want: []string{`serviceaccounts "nosuch" not found`}, fails: true},
		{args: "create token robot --duration 1s", want: []string{"may not specify a duration less than 10 minutes"},
			fails: true},
		{args: "create token robot --bound-object-kind Secret --bound-object-name nosuch",
			want: []string{`secrets "nosuch" not found`}, fails: true},
		{args: "create clusterrole metrics --verb=get --non-resource-url=/metrics --dry-run=server",
			want: []string{"created (server dry run)"}},
	}},
	{"Create", []step{
		{args: "create quota few --hard=pods=10,configmaps=50", want: []string{"resourcequota/few created"}},
		{args: "create quota dry --hard=pods=10 --dry-run=server -o yaml", want: []string{`pods: "10"`}},
		{args: "create quota wrong --hard=pods=-1", want: []string{"must be greater than or equal to 0"}, fails: true},
		{args: "get quota few", want: []string{"few"}},
		{args: "create secret generic pass --from-literal=a=b", want: []string{"secret/pass created"}},
		{args: "get secret pass", want: []string{"NAME   TYPE     DATA   AGE", "Opaque"}},
		{args: "create secret docker-registry reg --docker-username=u --docker-password=p", want: []string{"created"}},
		{args: "create ingress in --rule=foo.com/*=web:80", want: []string{"ingress.networking.k8s.io/in created"}},
		{args: "get ing in", want: []string{"CLASS", "HOSTS", "foo.com", "80"}},
		{args: "create poddisruptionbudget budget --selector=app=web --min-available=1",
			want: []string{"poddisruptionbudget.policy/budget created"}},
		{args: "create priorityclass urgent --value=10 --dry-run=server", want: []string{"created (server dry run)"}},
		{args: "expose deploy web --name exposed --port 81 --target-port 80",
			want: []string{"service/exposed exposed"}},
		{args: "create svc externalname out --external-name example.org", want: []string{"service/out created"}},
		{args: "create svc nodeport np --tcp=80:80", want: []string{"service/np created"}},
		{args: "run one --image=nginx:1.21.6 --dry-run=server", want: []string{"pod/one created (server dry run)"}},
		{args: "run one --image=nginx:1.21.6 --restart=Never --labels=app=one", want: []string{"pod/one created"}},
		{args: "run one --image=nginx:1.21.6", want: []string{`pods "one" already exists`}, fails: true},
		{args: "wait --for=condition=Ready pod/one --timeout=1s", // brief: it is to time out
			want: []string{"timed out waiting"}, fails: true},
		{args: "wait --for=delete pod/nosuch --timeout=1s"}, // brief: there is nothing to wait for
		{args: "logs one"}, // there are none before it has a node
		{args: "create ns apart --dry-run=server -o name", want: []string{"namespace/apart"}},
		{args: "create job once --image=busybox:1.36 --dry-run=server -o jsonpath={.spec.backoffLimit},{.spec.template.spec.restartPolicy}", want: []string{"6,Never"}},
		{args: "create cronjob often --image=busybox:1.36 --schedule \"*/5 * * * *\" --dry-run=server",
			want: []string{"cronjob.batch/often created (server dry run)"}},
		{args: "create cronjob often --image=busybox:1.36 --schedule \"sometimes\" --dry-run=server",
			want: []string{"expected exactly 5 fields"}, fails: true},
		{args: "create job once --image=busybox:1.36", want: []string{"job.batch/once created"}},
		{args: "get job once", want: []string{"STATUS", "COMPLETIONS", "DURATION", "0/1"}},
		{args: "delete job once", want: []string{`job.batch "once" deleted`}},
	}},
	{"Scale", []step{
		{args: "scale deploy web --replicas=2", want: []string{"deployment.apps/web scaled"}},
		{args: "scale deploy web --replicas=3 --current-replicas=7", want: []string{"Expected replicas to be 7, was 2"},
			fails: true},
		{args: "scale deploy web --replicas=-1", fails: true},
		{args: "get deploy web --subresource=scale", want: []string{"NAME   DESIRED   AVAILABLE   AGE", "web    2 "}},
	}},
	{"Rollout", []step{
		{args: "rollout history deploy/web", want: []string{"REVISION  CHANGE-CAUSE", "<none>"}, again: true},
		{args: "set image deploy/web c=nginx:1.22", want: []string{"deployment.apps/web image updated"}},
		{args: "annotate deploy web kubernetes.io/change-cause=newer", want: []string{"annotated"}},
		{args: "rollout history deploy/web", want: []string{"newer"}, again: true},
		{args: "rollout undo deploy/web", want: []string{"deployment.apps/web rolled back"}},
		{args: "get deploy web -o jsonpath={.spec.template.spec.containers[0].image}", want: []string{"nginx:1.21.6"}},
		{args: "rollout undo deploy/web --to-revision=99", want: []string{"unable to find specified revision 99"},
			fails: true},
		{args: "rollout pause deploy/web", want: []string{"deployment.apps/web paused"}},
		{args: "rollout restart deploy/web", want: []string{"can't restart paused deployment"}, fails: true},
		{args: "rollout resume deploy/web", want: []string{"deployment.apps/web resumed"}},
		{args: "rollout restart deploy/web", want: []string{"deployment.apps/web restarted"}},
		{args: "rollout status deploy/web --timeout=1s", // brief: it is to time out
			want: []string{"Waiting for deployment"}, fails: true},
		{args: "set env deploy/web A=b", want: []string{"env updated"}},
		{args: "set resources deploy/web --requests=cpu=10m", want: []string{"resource requirements updated"}},
		{args: "set resources deploy/web --requests=cpu=10m --limits=cpu=5m",
			want: []string{"must be less than or equal to cpu limit"}, fails: true},
		{args: "set sa deploy/web robot", want: []string{"serviceaccount updated"}},
		{args: "set selector svc web app=other", want: []string{"selector updated"}},
	}},
	{"Delete", []step{
		{args: "delete pod one --grace-period=0 --force", want: []string{`pod "one" force deleted`}},
		{args: "get pod one", want: []string{"NotFound"}, fails: true},
		{args: "delete deploy web --cascade=orphan", want: []string{`deployment.apps "web" deleted`}},
		{args: "get rs -l app=web -o name", want: []string{"replicaset.apps/web-"}},
		{args: "get rs -l app=web -o jsonpath={.items[*].metadata.ownerReferences}", not: "web", again: true},
		{args: "delete rs -l app=web --cascade=foreground --timeout=2m", want: []string{`replicaset.apps "web-`}},
		{args: "get pods -l app=web", want: []string{"No resources found"}},
		{args: "create deploy again --image=nginx:1.21.6 --replicas=2", want: []string{"created"}},
		{args: "get pods -l app=again --no-headers", want: []string{"again-"}, again: true},
		{args: "delete deploy again --cascade=background", want: []string{"deleted"}},
		{args: "get rs,pods -l app=again", want: []string{"No resources found"}, again: true},
		{args: "delete cm nosuch", want: []string{"NotFound"}, fails: true},
		{args: "delete cm nosuch --ignore-not-found"},
		{args: "delete cm kept --dry-run=server", want: []string{"(server dry run)"}},
		{args: "delete cm kept --now", want: []string{"deleted"}},
		{args: "delete secret --all", want: []string{`secret "pass" deleted`}},
		{args: "get secret", want: []string{"No resources found"}},
	}},
}

func ssa(value string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: shared}\ndata: {key: " + value + "}\n"
}

func custom(text string) string {
	return "apiVersion: clients.example.org/v1\nkind: Greeting\nmetadata: {name: one}\nspec: {text: " + text +
		", language: de}\n"
}

func TestKubectl(t *testing.T) {
	s := startServer(t)
	for name, run := range s.kubectls(t) {
		t.Run(name, func(t *testing.T) {
			namespace := "run-" + strings.ReplaceAll(name, " ", "-")
			if out, err := run("", "create", "ns", namespace); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if out, err := run("", "wait", "--for=create", "sa/default", "-n", namespace, "--timeout=2m"); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			within := func(stdin string, args ...string) (string, error) {
				return run(stdin, append([]string{"--namespace", namespace}, args...)...)
			}
			for _, part := range kubectlSteps {
				t.Run(part.name, func(t *testing.T) { runSteps(t, within, part.steps) })
			}
			t.Run("Token", func(t *testing.T) { testToken(t, within, namespace) })
			t.Run("Certificate", func(t *testing.T) { testCertificate(t, within, namespace) })
			t.Run("Proxy", func(t *testing.T) { testProxy(t, s, name) })
			t.Run("Namespace", func(t *testing.T) {
				runSteps(t, run,
					[]step{{args: "delete ns " + namespace + " --timeout=2m", want: []string{"deleted"}},
						{args: "get ns " + namespace, want: []string{"NotFound"}, fails: true}})
			})
		})
	}
}

// testToken asks for a token and for the user of that token.
func testToken(t *testing.T, run kubectl, namespace string) {
	out, err := run("", "create", "token", "robot", "--duration", "10m", "--audience", "somebody")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var claims struct {
		Aud      []string
		Sub      string
		Exp, Iat int64
	}
	parts := strings.Split(strings.TrimSpace(out), ".")
	if len(parts) != 3 {
		t.Fatalf("the token is %q", out)
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatalf("%v in %s", err, payload)
	}
	if claims.Sub != "system:serviceaccount:"+namespace+":robot" || len(claims.Aud) != 1 ||
		claims.Aud[0] != "somebody" || claims.Exp-claims.Iat != 600 {
		t.Errorf("claims %s", payload)
	}
	if out, err := run("", "auth", "whoami", "--token", strings.TrimSpace(out), "--as", "nobody"); err == nil &&
		strings.Contains(out, "robot") {
		t.Errorf("a token for somebody else is taken: %s", out)
	}
}

// testCertificate asks for a client's certificate and approves it.
func testCertificate(t *testing.T, run kubectl, name string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "alice", Organization: []string{"devs"}}}, key)
	if err != nil {
		t.Fatal(err)
	}
	text := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	manifest := func(suffix string) string {
		return "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {name: " + name +
			suffix + "}\nspec: {request: " + text +
			", signerName: kubernetes.io/kube-apiserver-client, expirationSeconds: 3600, usages: [client auth]}\n"
	}
	runSteps(t, run, []step{
		{args: "create -f -", stdin: manifest(""),
			want: []string{"certificatesigningrequest.certificates.k8s.io/" + name + " created"}},
		{args: "create -f -", stdin: manifest("-denied"), want: []string{"created"}},
		{args: "get csr " + name,
			want: []string{"SIGNERNAME", "REQUESTOR", "REQUESTEDDURATION", "CONDITION", "60m", "Pending"}},
		{args: "certificate approve " + name, want: []string{"approved"}},
		{args: "certificate deny " + name + "-denied", want: []string{"denied"}},
		{args: "get csr " + name, want: []string{"Approved"}},
		{args: "get csr " + name + "-denied", want: []string{"Denied"}},
		{args: "describe csr " + name, want: []string{"Common Name:", "alice", "devs", "Approved"}},
	})
	runSteps(t, run, []step{{args: "delete csr " + name + " " + name + "-denied", want: []string{"deleted"}}})
}

// testProxy reads through kubectl proxy.
func testProxy(t *testing.T, s *server, name string) {
	command := []string{s.binary, "kubectl"}
	if name == "kubectl" {
		command = []string{"kubectl"}
	}
	cmd := exec.Command(command[0], append(command[1:], "--kubeconfig", s.kubeconfig, "proxy", "--port=0")...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line := make([]byte, 200)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	_, address, ok := strings.Cut(strings.TrimSpace(string(line[:n])), "Starting to serve on ")
	if !ok {
		t.Fatalf("it says %q", line[:n])
	}
	for path, want := range map[string]int{"/api/v1/namespaces/default": 200, "/version": 200,
		"/api/v1/namespaces/nosuch": 404, "/api/v1/namespaces/default/pods/x/exec": 403} {
		res, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d: %s", path, res.StatusCode, want, body)
		}
	}
}
