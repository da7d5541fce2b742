package clustertest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Kubectl's messages for wrong manifests, and its other ways to talk to the API.

func TestBadManifests(t *testing.T) {
	s := newSpace(t)
	for _, c := range []struct {
		name, manifest string
		args           []string
		want           []string
	}{
		{"not YAML", "kind: [Pod\n  : {", nil, []string{"error converting YAML to JSON"}},
		{"no kind", "metadata: {name: x}", nil, []string{"kind"}},
		{"unknown kind", "apiVersion: apps/v1\nkind: Deploymint\nmetadata: {name: x}\n", []string{"--validate=false"},
			[]string{`no matches for kind "Deploymint" in version "apps/v1"`}},
		{"unknown field", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndatum: {a: b}\n", nil,
			[]string{"strict decoding error", `unknown field "datum"`}},
		{"unknown field, checked by the server alone",
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, labels: {a: b}}\ndatum: {a: b}\n",
			[]string{"--server-side"}, []string{"datum"}},
		{"every wrong field is named", `
apiVersion: apps/v1
kind: Deployment
metadata: {name: Bad_Name}
spec:
  replicas: -1
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: b}}
    spec:
      restartPolicy: Never
      containers: [{name: "", image: "", ports: [{containerPort: 70000}]}]
`, nil,
			[]string{"metadata.name: Invalid value", "spec.replicas: Invalid value: -1",
				"spec.template.metadata.labels: Invalid value", "`selector` does not match template `labels`",
				"spec.template.spec.containers[0].name: Required value",
				"spec.template.spec.containers[0].image: Required value",
				"spec.template.spec.containers[0].ports[0].containerPort: Invalid value: 70000",
				"spec.template.spec.restartPolicy: Unsupported value"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.ApplyResult(c.manifest, c.args...)
			if r.Error == nil {
				t.Fatalf("it was accepted: %s", r.Out)
			}
			for _, want := range c.want {
				if !strings.Contains(r.Err, want) {
					t.Errorf("the answer does not say %q:\n%s", want, r.Err)
				}
			}
		})
	}
	Eventually(t, deadline, "nothing of the refused manifests, and what each namespace gets",
		func(context.Context) error {
			if out := s.K("get", "deployments,pods,configmaps", "-o", "name"); out != "configmap/kube-root-ca.crt\n" {
				return fmt.Errorf("there is\n%s", out)
			}
			return nil
		})
}

// The answer to an invalid object is 422 with a cause for each field, for programs.
func TestInvalidIs422(t *testing.T) {
	s := newSpace(t)
	file := filepath.Join(t.TempDir(), "service.json")
	manifest := `{"apiVersion":"v1","kind":"Service","metadata":{"name":"x"},"spec":{"type":"Nonsense","ports":[{"port":0}]}}`
	if err := os.WriteFile(file, []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	r := s.KResult("create", "--raw", "/api/v1/namespaces/"+s.Namespace+"/services", "-f", file, "-v=8")
	if r.Error == nil || !strings.Contains(r.Err, "422") {
		t.Fatalf("the answer is not 422: %v", r.Error)
	}
	for _, field := range []string{`"field":"spec.type"`, `"field":"spec.ports[0].port"`} {
		if !strings.Contains(strings.ReplaceAll(strings.ReplaceAll(r.Err, `\"`, `"`), " ", ""), field) {
			t.Errorf("no cause has %s:\n%s", field, r.Err)
		}
	}
}

func TestServerSideApplyDiffWaitExplain(t *testing.T) {
	s := newSpace(t)
	manifest := func(value string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: shared}\ndata: {colour: " + value + "}\n"
	}
	must(t, s.ApplyResult(manifest("blue"), "--server-side"))
	r := s.ApplyResult(manifest("red"), "--server-side", "--field-manager=other")
	if r.Error == nil || !strings.Contains(r.Err, "conflict") || !strings.Contains(r.Err, ".data.colour") {
		t.Errorf("another manager's change of the field: %s%s", r.Out, r.Err)
	}
	must(t, s.ApplyResult(manifest("red"), "--server-side", "--field-manager=other", "--force-conflicts"))
	diff := s.KubectlResult(t.Context(), manifest("green"), "-n", s.Namespace, "diff", "-f", "-")
	if diff.Code != 1 || !strings.Contains(diff.Out, "-  colour: red") ||
		!strings.Contains(diff.Out, "+  colour: green") {
		t.Errorf("diff ended with %d:\n%s%s", diff.Code, diff.Out, diff.Err)
	}
	if value := s.K("get", "configmap", "shared", "-o", "jsonpath={.data.colour}"); value != "red" {
		t.Errorf("the value is %q after a diff", value)
	}
	if out := s.K("apply", "-f", examples+"hello.yaml", "--dry-run=server"); strings.Count(out, "server dry run") != 2 {
		t.Errorf("dry run says %s", out)
	}
	s.K("apply", "-f", examples+"hello.yaml")
	s.K("wait", "--for=condition=Available", "deployment/hello", "--timeout=2m")
	for _, field := range []string{"deployment.spec.replicas", "pod.spec.containers.image", "service.spec.type"} {
		if out := s.K("explain", field); !strings.Contains(out, "FIELD: "+field[strings.LastIndex(field, ".")+1:]) {
			t.Errorf("explain %s:\n%s", field, out)
		}
	}
	s.K("delete", "deployment", "hello", "--wait")
	s.K("wait", "--for=delete", "pods", "-l", "app=hello", "--timeout=2m")
}

// Clients that check versions find Kubernetes 1.37; kubectl of barque itself works the same way.
func TestVersionAndBarqueKubectl(t *testing.T) {
	c := sharedCluster(t)
	var v struct{ Major, Minor, GitVersion string }
	if err := json.Unmarshal([]byte(c.Kubectl(t, "get", "--raw", "/version")), &v); err != nil {
		t.Fatal(err)
	}
	if v.Major != "1" || v.Minor != "37" || !strings.HasPrefix(v.GitVersion, "v1.37.") ||
		!strings.Contains(v.GitVersion, "+barque") {
		t.Errorf("/version is %+v", v)
	}
	if out := c.Barque(t, "kubectl", "get", "nodes", "-o", "name"); out != "node/s1\nnode/s2\nnode/s3\n" {
		t.Errorf("barque kubectl get nodes: %s", out)
	}
	if out := c.Barque(t, "kubectl", "version"); !strings.Contains(out, "Client Version: v1.37.") ||
		!strings.Contains(out, "Server Version: v1.37.") {
		t.Errorf("barque kubectl version: %s", out)
	}
	if out := c.Kubectl(t, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); out != "barque:admin" {
		t.Errorf("the kubeconfig is of %q", out)
	}
	for _, kind := range []string{"pods", "deployments.apps", "endpointslices.discovery.k8s.io",
		"leases.coordination.k8s.io", "clusterroles.rbac.authorization.k8s.io", "events.events.k8s.io"} {
		if out := c.Kubectl(t, "api-resources", "-o", "name"); !strings.Contains("\n"+out, "\n"+kind+"\n") {
			t.Errorf("api-resources has no %s:\n%s", kind, out)
		}
	}
}
