package node

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/cmd/barque/node/addons"
	"github.com/barque/barque/controllers/helmcharts"
	"github.com/barque/barque/controllers/manifests"
	"github.com/barque/barque/internal/osthread"
)

// chartOf makes the archive of a chart with one ConfigMap, and a pod that must end before an
// upgrade. No pod runs in these tests: an upgrade stays in the middle until the test says that the
// pod has ended.
func chartOf(t *testing.T, version string) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	files := tar.NewWriter(zipped)
	for name, text := range map[string]string{
		"Chart.yaml":  "apiVersion: v2\nname: charted\nversion: " + version + "\n",
		"values.yaml": "word: default\n",
		"templates/map.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: charted}
data: {word: "{{ .Values.word }}", version: "{{ .Chart.Version }}"}
`,
		"templates/hook.yaml": `apiVersion: v1
kind: Pod
metadata:
  name: before-upgrade
  annotations: {helm.sh/hook: pre-upgrade}
spec:
  restartPolicy: Never
  containers: [{name: c, image: example.com/none}]
`,
	} {
		if err := files.WriteHeader(&tar.Header{Name: "charted/" + name, Mode: 0o644, Size: int64(len(text)),
			Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := files.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(files.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// serveCharts is a repository of charts inside the namespace.
func serveCharts(t *testing.T, s *space, at string, versions ...string) {
	t.Helper()
	index := "apiVersion: v1\nentries:\n  other:\n  - name: other\n    version: 9.9.9\n  charted:\n"
	mux := http.NewServeMux()
	for _, v := range versions {
		index += fmt.Sprintf("  - name: charted\n    version: %s\n    urls: [charted-%s.tgz]\n", v, v)
		data := chartOf(t, v)
		mux.HandleFunc("/charted-"+v+".tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	}
	mux.HandleFunc("/index.yaml", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(index)) })
	var listener net.Listener
	if err := osthread.Do(func() (err error) {
		if err := netns.Set(s.handle); err != nil {
			return err
		}
		listener, err = net.Listen("tcp", at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	server, ended := &http.Server{Handler: mux}, make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
}

// put writes a file of the directory manifests as users should: whole, by a renaming.
func (p *process) put(name, text string) {
	p.t.Helper()
	dir := filepath.Join(p.order.DataDir, addons.ManifestsDir)
	next := filepath.Join(dir, "."+name)
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, name)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) drop(name string) {
	p.t.Helper()
	if err := os.Remove(filepath.Join(p.order.DataDir, addons.ManifestsDir, name)); err != nil {
		p.t.Fatal(err)
	}
}

// objects is a client of custom resources of this server.
func (p *process) objects() dynamic.Interface {
	p.t.Helper()
	config, err := p.config()
	if err != nil {
		p.t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		p.t.Fatal(err)
	}
	return client
}

// manifest reads a Manifest.
func (p *process) manifest(ctx context.Context, name string) (*manifests.Object, error) {
	u, err := p.objects().Resource(manifests.Resource).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return manifests.Read(u)
}

// word is nil when a ConfigMap has the word.
func word(ctx context.Context, client kubernetes.Interface, namespace, name, want string) error {
	m, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err == nil && m.Data["word"] != want {
		err = fmt.Errorf("it has %q, want %q", m.Data, want)
	}
	return err
}

func noMap(ctx context.Context, client kubernetes.Interface, namespace, name string) error {
	_, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		err = errors.New("it is there")
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

const fileOf = `apiVersion: v1
kind: Namespace
metadata: {name: filed}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: filed, namespace: filed}
data: {word: %s}
`

const chartFile = `apiVersion: helm.cattle.io/v1
kind: HelmChart
metadata: {name: charted, namespace: kube-system}
spec:
  repo: http://10.88.0.1:8879
  chart: charted
  version: %s
  targetNamespace: charts
  createNamespace: true
  valuesContent: |
    word: content
  set: {word: %s}
`

// leading returns the server whose log tells last that it leads.
func leading(servers []*process) (*process, error) {
	for _, p := range servers {
		log := p.log.String()
		began := strings.LastIndex(log, "leading: starting the controllers")
		if began >= 0 && began > strings.LastIndex(log, "leadership ended: the controllers have stopped") {
			return p, nil
		}
	}
	return nil, errors.New("none leads")
}

// records returns the statuses of Helm's records of the release, by its labels.
func records(ctx context.Context, client kubernetes.Interface) (statuses []string, err error) {
	list, err := client.CoreV1().Secrets("charts").List(ctx,
		metav1.ListOptions{LabelSelector: "owner=helm,name=charted"})
	if err != nil {
		return nil, err
	}
	for _, s := range list.Items {
		statuses = append(statuses, s.Labels["status"])
	}
	return statuses, nil
}

// Files on servers are applied by the leader, once for all servers, and go with the last one that
// has them. A HelmChart among them is installed from a repository and upgraded. The leader is
// killed in the middle of the upgrade; the next one takes it up. The release goes with the file.
func TestManifestsAndCharts(t *testing.T) {
	servers := startThree(t, "")
	serveCharts(t, servers[0].space, "10.88.0.1:8879", "1.0.0", "1.1.0")
	first, second, third := servers[0], servers[1], servers[2]
	client := third.client()

	first.put("app.yaml", fmt.Sprintf(fileOf, "one"))
	second.put("app.yaml", fmt.Sprintf(fileOf, "one"))
	until(t, patience, "the file is applied, and known to be on two servers", func(ctx context.Context) error {
		if err := word(ctx, client, "filed", "filed", "one"); err != nil {
			return err
		}
		m, err := third.manifest(ctx, "app.yaml")
		if err == nil && (len(m.Spec.Sources) != 2 || m.Status.Applied == "") {
			err = fmt.Errorf("it is %+v", m)
		}
		return err
	})
	secrets, err := client.CoreV1().Secrets(manifests.SecretNamespace).List(t.Context(),
		metav1.ListOptions{FieldSelector: "type=" + string(manifests.SecretType)})
	if err != nil || len(secrets.Items) != 1 {
		t.Fatalf("the content of two servers is %d times in the store, %v", len(secrets.Items), err)
	}

	second.put("app.yaml", fmt.Sprintf(fileOf, "two"))
	until(t, patience, "the last content counts, and the difference is said", func(ctx context.Context) error {
		if err := word(ctx, client, "filed", "filed", "two"); err != nil {
			return err
		}
		m, err := third.manifest(ctx, "app.yaml")
		if err == nil && !slices.ContainsFunc(m.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == manifests.Agreed && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "s1")
		}) {
			err = fmt.Errorf("its conditions are %+v", m.Status.Conditions)
		}
		return err
	})
	first.drop("app.yaml")
	until(t, patience, "one server has the file", func(ctx context.Context) error {
		m, err := third.manifest(ctx, "app.yaml")
		if err == nil && len(m.Spec.Sources) != 1 {
			err = fmt.Errorf("its sources are %+v", m.Spec.Sources)
		}
		return err
	})
	if err := word(t.Context(), client, "filed", "filed", "two"); err != nil {
		t.Fatal("a file that one server still has: ", err)
	}
	second.drop("app.yaml")
	until(t, patience, "what no server has any more is pruned", func(ctx context.Context) error {
		if err := noMap(ctx, client, "filed", "filed"); err != nil {
			return err
		}
		if _, err := third.manifest(ctx, "app.yaml"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the Manifest is there, or %v", err)
		}
		return nil
	})

	third.put("chart.yaml", fmt.Sprintf(chartFile, "1.0.0", "first"))
	until(t, patience, "the chart is installed", func(ctx context.Context) error {
		return word(ctx, client, "charts", "charted", "first")
	})
	third.put("chart.yaml", fmt.Sprintf(chartFile, "1.1.0", "second"))
	until(t, patience, "an upgrade that waits for its hook", func(ctx context.Context) error {
		if _, err := client.CoreV1().Pods("charts").Get(ctx, "before-upgrade", metav1.GetOptions{}); err != nil {
			return err
		}
		all, err := records(ctx, client)
		if err == nil && !slices.Contains(all, "pending-upgrade") {
			err = fmt.Errorf("the records are %q", all)
		}
		return err
	})
	old, err := leading(servers)
	if err != nil {
		t.Fatal(err)
	}
	old.signal(syscall.SIGKILL)
	<-old.ended
	others := slices.DeleteFunc(slices.Clone(servers), func(p *process) bool { return p == old })
	client = others[0].client()
	until(t, patience, "the next leader takes the upgrade up and ends it", func(ctx context.Context) error {
		if err := endHook(ctx, client, "charts"); err != nil {
			return err
		}
		if err := word(ctx, client, "charts", "charted", "second"); err != nil {
			return err
		}
		all, err := records(ctx, client)
		slices.Sort(all)
		if want := []string{"deployed", "failed", "superseded"}; err == nil && !slices.Equal(all, want) {
			err = fmt.Errorf("the records are %q, want %q", all, want)
		}
		return err
	})
	charts := others[0].objects().Resource(helmcharts.Resource).Namespace(metav1.NamespaceSystem)

	// The file goes, also where its server is the one that was killed: a user deletes the object
	// then.
	if third != old {
		third.drop("chart.yaml")
	} else if err := charts.Delete(t.Context(), "charted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, patience, "the release is uninstalled", func(ctx context.Context) error {
		if err := noMap(ctx, client, "charts", "charted"); err != nil {
			return err
		}
		if _, err := charts.Get(ctx, "charted", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the HelmChart is there, or %v", err)
		}
		all, err := records(ctx, client)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("the records are %q", all)
		}
		return err
	})
	t.Run("a chart in its object", func(t *testing.T) { chartContent(t, others[0]) })
}

// endHook says of the pod of an upgrade what a kubelet would say.
func endHook(ctx context.Context, client kubernetes.Interface, namespace string) error {
	_, err := client.CoreV1().Pods(namespace).Patch(ctx, "before-upgrade", types.MergePatchType,
		[]byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// chartContent installs a chart that its object has, with the values of a HelmChartConfig.
func chartContent(t *testing.T, p *process) {
	client := p.client()
	content := base64.StdEncoding.EncodeToString(chartOf(t, "2.0.0"))
	p.put("content.yaml", `apiVersion: helm.cattle.io/v1
kind: HelmChart
metadata: {name: within, namespace: default}
spec: {chartContent: `+content+`, values: {word: chart}}
---
apiVersion: helm.cattle.io/v1
kind: HelmChartConfig
metadata: {name: within, namespace: default}
spec: {valuesContent: "word: config"}
`)
	until(t, patience, "the chart has the values of its HelmChartConfig", func(ctx context.Context) error {
		if err := endHook(ctx, client, corev1.NamespaceDefault); err != nil { // the chart may come before them
			return err
		}
		return word(ctx, client, corev1.NamespaceDefault, "charted", "config")
	})
}
