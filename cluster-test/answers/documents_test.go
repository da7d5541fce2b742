package main

import (
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"github.com/barque/barque/apiserver/openapi/schemas"
	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/internal/needs"
)

// published is the folder of upstream's repository that has its OpenAPI documents.
func published(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), kubeapiserver.Go(), "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	cmd.Dir = "../kubeapiserver/upstream"
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=off", "GOFLAGS=")
	dir, err := cmd.Output()
	if folder := strings.TrimSpace(string(dir)); err == nil && folder != "" {
		return filepath.Join(folder, "api", "openapi-spec")
	}
	needs.Missing(t, "k8s.io/kubernetes in the module cache (`make answers` gets it)",
		"that the OpenAPI documents are upstream's")
	return ""
}

func readDocument(t *testing.T, path string) map[string]any {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// metricsPath is where kube-apiserver passes requests on to metrics-server: it publishes nothing of
// it.
const metricsPath = "/apis/metrics.k8s.io"

// Every document of a group that upstream publishes says the same here, but for enumerations, which
// upstream leaves out there.
func TestPublishedDocuments(t *testing.T) {
	if !schemas.Built() {
		needs.Missing(t, "the schemas (`make schemas`)", "that the OpenAPI documents are upstream's")
	}
	folder := published(t)
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	s, err := startBarque(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	paths, err := s.documents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	compare := func(path string, theirs, ours map[string]any) {
		want, got := statements{}, statements{}
		want.add("", theirs)
		got.add("", ours)
		want.withoutEnums()
		got.withoutEnums()
		differ, same := compareStatements(want, got)
		for _, line := range differ[:min(len(differ), 10)] {
			t.Errorf("%s %s", path, line)
		}
		if len(differ) > 10 {
			t.Errorf("%s: %d statements differ in all", path, len(differ))
		}
		t.Logf("%s: %d statements are the same", path, same)
	}
	for _, path := range paths {
		if strings.HasPrefix(path, documents+metricsPath) {
			continue
		}
		name := strings.ReplaceAll(strings.TrimPrefix(path, documents+"/"), "/", "__") + "_openapi.json"
		ours, err := s.document(t.Context(), path)
		if err != nil {
			t.Error(err)
			continue
		}
		compare(path, readDocument(t, filepath.Join(folder, "v3", name)), ours)
	}
	ours, err := s.document(t.Context(), documentV2)
	if err != nil {
		t.Fatal(err)
	}
	theirs := readDocument(t, filepath.Join(folder, "swagger.json"))
	maps.DeleteFunc(ours["paths"].(map[string]any),
		func(path string, _ any) bool { return strings.HasPrefix(path, metricsPath) })
	served(theirs, ours)
	served(ours, ours)
	// They list all groups, and some are not served.
	for _, name := range []string{"DeleteOptions", "WatchEvent"} {
		for _, doc := range []map[string]any{theirs, ours} {
			delete(doc["definitions"].(map[string]any)["io.k8s.apimachinery.pkg.apis.meta.v1."+name].(map[string]any),
				"x-kubernetes-group-version-kind")
		}
	}
	compare(documentV2, theirs, ours)
}

func TestStatements(t *testing.T) {
	theirs, ours := statements{}, statements{}
	theirs.add("",
		object(t,
			`{info: {version: a}, a: {description: "text\n\nPossible enum values:\n - A", enum: [A], required: [x, y]}, b: {}, c: 1}`))
	ours.add("", object(t, `{info: {version: b}, a: {description: text, required: [y, x]}, b: {}, c: 2, d: [e]}`))
	theirs.withoutEnums()
	differ, same := compareStatements(theirs, ours)
	want := []string{`/c: upstream "1", Barque "2"`, `/d/0: only Barque: "e"`}
	if diff := cmp.Diff(want, differ); diff != "" || same != 4 {
		t.Errorf("%d the same (-want +got):\n%s", same, diff)
	}
}

func TestServed(t *testing.T) {
	theirs := object(t,
		`{paths: {/a: {$ref: "#/definitions/A"}, /z: {$ref: "#/definitions/Z"}}, definitions: {A: {items: [{$ref: "#/definitions/B"}]}, B: {$ref: "#/definitions/A"}, Z: {}}}`)
	served(theirs, object(t, `{paths: {/a: {}}}`))
	var left []string
	for _, part := range []string{"paths", "definitions"} {
		for name := range theirs[part].(map[string]any) {
			left = append(left, name)
		}
	}
	slices.Sort(left)
	if diff := cmp.Diff([]string{"/a", "A", "B"}, left); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
