package apiserver

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/version"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"

	"github.com/barque/barque/apiserver/openapi/schemas"
	"github.com/barque/barque/internal/needs"
)

// kubectlVariable in the environment makes the test binary kubectl, for machines that have none.
const kubectlVariable = "BARQUE_TEST_KUBECTL"

func TestMain(m *testing.M) {
	if os.Getenv(kubectlVariable) != "" {
		// A program that is linked without a version has one that kubectl cannot read.
		if err := version.SetDynamicVersion("v0.0.0-test"); err != nil {
			panic(err)
		}
		os.Exit(cli.Run(kubectlcmd.NewDefaultKubectlCommand()))
	}
	if description := os.Getenv(readerVariable); description != "" {
		if err := readAnswers(description); err != nil {
			fmt.Fprintln(os.Stderr, "reading answers:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(watchersVariable) != "" {
		if err := runWatchers(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "watching:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// kubectl runs the kubectl on the PATH, or the one in the module graph, as an administrator of the
// cluster.
func kubectl(t *testing.T, c *cluster) func(stdin string, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath("kubectl")
	if err != nil {
		if path, err = os.Executable(); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	writeKubeconfig(t, kubeconfig, c.ca.client(t, c.host, admin()))
	return func(stdin string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), path, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, kubectlVariable+"=1", "HOME="+dir,
			"KUBECACHEDIR="+filepath.Join(dir, "cache"))
		cmd.Stdin = strings.NewReader(stdin)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		return out.String(), err
	}
}

func writeKubeconfig(t *testing.T, path string, cfg *restclient.Config) {
	t.Helper()
	k := clientcmdapi.NewConfig()
	k.Clusters["c"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	k.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	k.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	k.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*k, path); err != nil {
		t.Fatal(err)
	}
}

func TestKubectl(t *testing.T) {
	c := startCluster(t)
	if err := c.ensure(t.Context(), c.client); err != nil {
		t.Fatal(err)
	}
	run := kubectl(t, c)
	manifest := `
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
data:
  colour: blue
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: "nginx:1.21.6"}]}
`
	changed := strings.Replace(manifest, "blue", "red", 1)
	enums := []string{"ENUM:", "Always", "IfNotPresent", "Never"}
	if !schemas.Built() {
		needs.LeftOut(t, []error{fmt.Errorf("kubectl explain does not list enumerations: %w", schemas.ErrNotBuilt)})
		enums = []string{"<string>"}
	}
	for _, step := range []struct {
		stdin string
		args  string
		want  []string
	}{
		{manifest, "apply -f -", []string{"configmap/settings created", "deployment.apps/web created"}},
		{manifest, "apply -f -", []string{"configmap/settings unchanged", "deployment.apps/web unchanged"}},
		{changed, "diff -f -", []string{"-  colour: blue", "+  colour: red"}},
		{changed, "apply -f -", []string{"configmap/settings configured", "deployment.apps/web unchanged"}},
		{changed, "apply --server-side --force-conflicts -f -", []string{"configmap/settings serverside-applied"}},
		{"", "get cm settings -o wide", []string{"NAME", "DATA", "AGE", "settings"}},
		{"", "get configmap settings -o jsonpath={.data.colour}", []string{"red"}},
		{"", "get ns", []string{"kube-system", "Active"}},
		{"", "explain configmap.data",
			[]string{"KIND:", "ConfigMap", "FIELD: data <map[string]string>", "DESCRIPTION:"}},
		{"", "explain deployment.spec.template.spec.containers", []string{"<[]Container>", "image"}},
		{"", "explain pod.spec.containers.imagePullPolicy", enums},
		{"", "scale deployment/web --replicas=3", []string{"deployment.apps/web scaled"}},
		{"", "label cm settings tier=front", []string{"configmap/settings labeled"}},
		{"", "auth can-i list pods", []string{"yes"}},
		{"", "auth whoami", []string{"admin", "system:masters"}},
		{"", "api-resources --api-group=apps", []string{"deployments", "deploy"}},
		{"", "version", []string{"Server Version: v1.37"}},
		{"", "describe cm settings", []string{"colour:", "red"}},
		{"", "create token default", nil},
		{"", "delete cm settings", []string{`configmap "settings" deleted`}},
	} {
		out, err := run(step.stdin, strings.Fields(step.args)...)
		// diff exits with 1 if there are differences.
		if err != nil && !strings.HasPrefix(step.args, "diff") && step.want != nil {
			t.Errorf("kubectl %s: %v\n%s", step.args, err, out)
		}
		for _, want := range step.want {
			if !strings.Contains(out, want) {
				t.Errorf("kubectl %s: %q is missing in\n%s", step.args, want, out)
			}
		}
	}
	out, err := run("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndaata: {}\n", "apply", "-f", "-")
	if err == nil || !strings.Contains(out, `unknown field "daata"`) {
		t.Errorf("an unknown field: %v\n%s", err, out)
	}
}
