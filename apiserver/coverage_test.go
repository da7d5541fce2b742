package apiserver

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// facts are discovery's facts of a resource or subresource.
type facts struct {
	kind                          string // with its group/version where that is another one
	scope                         string // "namespaced" or "cluster"
	shortNames, categories, verbs string // joined by commas, "-" for none
}

// verbSets are the sets of verbs that have a name in the tables.
var verbSets = map[string]string{
	"create,delete,deletecollection,get,list,patch,update,watch": "stored",
	"get,patch,update": "status",
}

// testCoverage compares discovery with the default resources of Kubernetes. Every kind of
// client-go's scheme is served, or has a line in not-served.tsv with the reason why it is not.
func testCoverage(t *testing.T, c *cluster) {
	upstream, excuses := readUpstream(t), readExcuses(t)
	client := *c.admin.Discovery().(*discovery.DiscoveryClient)
	for _, client.UseLegacyDiscovery = range []bool{true, false} {
		for _, problem := range compareCoverage(readServed(t, &client), upstream, excuses, clientscheme.Scheme) {
			t.Errorf("legacy discovery %v: %s", client.UseLegacyDiscovery, problem)
		}
	}
}

// compareCoverage returns the differences between served and upstream. Keys are
// "group/version resource".
func compareCoverage(served, upstream map[string]facts, excuses map[string]string, scheme *runtime.Scheme) []string {
	var problems []string
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	versions, kinds := map[string]bool{}, map[string]bool{}
	for name, want := range upstream {
		gv, _, _ := strings.Cut(name, " ")
		versions[gv] = true
		kinds[kindIn(gv, want.kind)] = true
		got, ok := served[name]
		switch {
		case !ok && excuses[name] == "":
			wrong("%s is not served, and not-served.tsv has no reason", name)
		case ok && got != want:
			wrong("%s differs from Kubernetes:\nhas  %+v\nwant %+v", name, got, want)
		}
	}
	for name := range served {
		gv, _, _ := strings.Cut(name, " ")
		switch {
		case excuses[name] != "":
			wrong("%s is served: remove its line from not-served.tsv", name)
		case excuses[gv] != "":
			wrong("%s is served: remove the line of %s from not-served.tsv", name, gv)
		case upstream[name] == facts{}:
			wrong("%s is served, and Kubernetes does not serve it", name)
		}
	}
	known := map[string]bool{}
	for _, gvk := range apiKinds(scheme) {
		gv := gvk.GroupVersion().String()
		name := gv + " " + gvk.Kind
		known[gv], known[name] = true, true
		switch {
		case kinds[name] && excuses[name] != "":
			wrong("%s is the kind of a resource of Kubernetes: not-served.tsv names the resource", name)
		case !kinds[name] && excuses[name] == "" && excuses[gv] == "":
			wrong("kind %s is of no resource, and not-served.tsv has no reason", name)
		}
	}
	for name := range excuses {
		switch {
		case upstream[name] == facts{} && !known[name]:
			wrong("not-served.tsv has %s, which is neither in client-go's scheme nor in Kubernetes", name)
		case versions[name]:
			wrong("not-served.tsv has all of %s, which Kubernetes serves by default", name)
		}
	}
	slices.Sort(problems)
	return problems
}

// kindIn returns "group/version kind" of a kind as the tables have it.
func kindIn(gv, kind string) string {
	if i := strings.LastIndex(kind, "."); i >= 0 {
		return kind[:i] + " " + kind[i+1:]
	}
	return gv + " " + kind
}

// apiKinds returns the kinds of a scheme, without lists and the kinds of every group.
func apiKinds(scheme *runtime.Scheme) []schema.GroupVersionKind {
	common := reflect.TypeFor[metav1.Status]().PkgPath()
	var kinds []schema.GroupVersionKind
	for gvk, of := range scheme.AllKnownTypes() {
		_, list := of.FieldByName("Items")
		if gvk.Version != runtime.APIVersionInternal && of.PkgPath() != common && !list {
			kinds = append(kinds, gvk)
		}
	}
	return kinds
}

// readServed returns all resources of a server, from discovery.
func readServed(t *testing.T, client discovery.DiscoveryInterface) map[string]facts {
	t.Helper()
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]facts{}
	for _, list := range lists {
		for _, r := range list.APIResources {
			f := facts{kind: r.Kind, scope: "cluster", shortNames: joined(r.ShortNames),
				categories: joined(r.Categories), verbs: joined(r.Verbs)}
			if of := (schema.GroupVersion{Group: r.Group, Version: r.Version}); r.Version != "" &&
				of.String() != list.GroupVersion {
				f.kind = of.String() + "." + r.Kind
			}
			if r.Namespaced {
				f.scope = "namespaced"
			}
			if set, ok := verbSets[f.verbs]; ok {
				f.verbs = set
			}
			if !strings.Contains(r.Name, "/") && list.GroupVersion != metricsVersion.String() &&
				r.SingularName != strings.ToLower(r.Kind) {
				t.Errorf("%s %s: the singular is %q", list.GroupVersion, r.Name, r.SingularName)
			}
			served[list.GroupVersion+" "+r.Name] = f
		}
	}
	return served
}

func joined(names []string) string {
	if len(names) == 0 {
		return "-"
	}
	names = slices.Clone(names)
	slices.Sort(names)
	return strings.Join(names, ",")
}

func readUpstream(t *testing.T) map[string]facts {
	t.Helper()
	upstream := map[string]facts{}
	for _, row := range readTable(t, "testdata/kubernetes-1.37.tsv", 7) {
		upstream[row[0]+" "+row[1]] = facts{row[2], row[3], row[4], row[5], row[6]}
	}
	return upstream
}

func readExcuses(t *testing.T) map[string]string {
	t.Helper()
	excuses := map[string]string{}
	for _, row := range readTable(t, "testdata/not-served.tsv", 2) {
		excuses[row[0]] = row[1]
	}
	return excuses
}

// readTable returns the rows of a file of columns, without comments. Two rows differ in more than
// their last column.
func readTable(t *testing.T, path string, columns int) [][]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		row := strings.Split(line, "\t")
		if len(row) != columns || slices.Contains(row, "") {
			t.Fatalf("%s: %q has not %d columns", path, line, columns)
		}
		rows = append(rows, row)
	}
	return rows
}

// TestCompareCoverage checks that each way to differ from Kubernetes is found.
func TestCompareCoverage(t *testing.T) {
	pods := facts{"Pod", "namespaced", "po", "all", "stored"}
	of := func(name string, f facts) map[string]facts { return map[string]facts{name: f} }
	none := map[string]facts{}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, &metav1.PartialObjectMetadata{})
	other := pods
	other.shortNames = "p"
	for name, c := range map[string]struct {
		served, upstream map[string]facts
		excuses          map[string]string
		want             string
	}{
		"good":        {of("v1 pods", pods), of("v1 pods", pods), nil, ""},
		"excused":     {none, of("v1 pods", pods), map[string]string{"v1 pods": "x"}, ""},
		"missing":     {none, of("v1 pods", pods), nil, "is not served, and"},
		"other facts": {of("v1 pods", other), of("v1 pods", pods), nil, "differs"},
		"excused no longer": {of("v1 pods", pods), of("v1 pods", pods), map[string]string{"v1 pods": "x"},
			"is served: remove its line"},
		"version excused": {of("v2 pods", pods), of("v2 pods", pods), map[string]string{"v2": "x"},
			"remove the line of v2"},
		"of our own": {of("v1 pods", pods), none, nil, "Kubernetes does not serve it"},
		"unknown excuse": {of("v1 pods", pods), of("v1 pods", pods), map[string]string{"v1 nodes": "x"},
			"neither in"},
	} {
		problems := strings.Join(compareCoverage(c.served, c.upstream, c.excuses, scheme), "\n")
		if (c.want == "") != (problems == "") || !strings.Contains(problems, c.want) {
			t.Errorf("%s: want %q, got %q", name, c.want, problems)
		}
	}
	scheme.AddKnownTypeWithName(schema.GroupVersionKind{Version: "v1", Kind: "Node"}, &clientFake{})
	if problems := compareCoverage(none, none, nil, scheme); len(problems) != 1 ||
		!strings.Contains(problems[0], "kind v1 Node") {
		t.Errorf("a kind without a resource: %q", problems)
	}
	if problems := compareCoverage(none, none, map[string]string{"v1 Node": "no resource"},
		scheme); len(problems) != 0 {
		t.Errorf("a kind with a reason: %q", problems)
	}
}

// clientFake is a type that is not of meta/v1.
type clientFake struct{ metav1.PartialObjectMetadata }

// DeepCopyObject implements runtime.Object.
func (f *clientFake) DeepCopyObject() runtime.Object { out := *f; return &out }
