package gates

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/internal/needs"
)

// stored is why a field without an effect is taken.
const stored = "earlier versions stored it: were it refused, such a pod could not be changed, and so not be deleted either"

// accepted are fields whose gate is off in Kubernetes, and which are accepted here.
var accepted = map[string]string{
	"TypedObjectReference.Namespace":      "whether a claim may be filled from another namespace is for its provisioner to decide",
	"ClusterTrustBundleProjection.User":   stored,
	"ConfigMapVolumeSource.DefaultUser":   stored,
	"DownwardAPIVolumeFile.User":          stored,
	"DownwardAPIVolumeSource.DefaultUser": stored,
	"GRPCAction.Mode":                     stored,
	"HTTPGetAction.Protocol":              stored,
	"KeyToPath.User":                      stored,
	"PodCertificateProjection.User":       stored,
	"ProjectedVolumeSource.DefaultUser":   stored,
	"SecretVolumeSource.DefaultUser":      stored,
	"ServiceAccountTokenProjection.User":  stored,
}

// unmarked are gated fields whose comment in the API's source has no mark of it.
var unmarked = map[string]string{"Lifecycle.StopSignal": "ContainerStopSignals"}

// Each field of a pod's spec that depends on a feature gate is either on, or refused: a new release
// of the API brings no field that is taken and forgotten.
func TestNoGatedFieldIsForgotten(t *testing.T) {
	marked := maps.Clone(unmarked)
	maps.Copy(marked, markedFields(t))
	if len(marked) < 20 {
		t.Fatalf("only %d fields are marked with a gate: the source is not read right", len(marked))
	}
	used := map[string]bool{}
	for of, gate := range marked {
		used[gate] = true
		on, known := gates[gate]
		switch {
		case !known:
			t.Errorf("%s depends on the gate %s, which is not in the list of gates", of, gate)
		case on && gated[of] != "":
			t.Errorf("%s is refused, and its gate %s is on", of, gate)
		case !on && accepted[of] == "" && gated[of] != gate:
			t.Errorf("%s is taken, and its gate %s is off", of, gate)
		}
	}
	for of := range gated {
		if marked[of] == "" {
			t.Errorf("%s is refused, and there is no such field with a gate", of)
		}
	}
	for gate := range gates {
		if !used[gate] {
			t.Errorf("no field depends on the gate %s", gate)
		}
	}
}

// markedFields returns the fields below a pod's spec that the API's source marks with a gate.
func markedFields(t *testing.T) map[string]string {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "k8s.io/api/core/v1").Output()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(out)), "types.go"), nil,
		parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	reachable := map[string]bool{}
	reach(reflect.TypeFor[corev1.PodSpec](), reachable)
	mark := regexp.MustCompile(`\+featureGate=(\w+)`)
	marked := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || !reachable[spec.Name.Name] {
			return true
		}
		s, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, f := range s.Fields.List {
			if m := mark.FindStringSubmatch(f.Doc.Text() + directives(f.Doc)); m != nil && len(f.Names) > 0 {
				marked[spec.Name.Name+"."+f.Names[0].Name] = m[1]
			}
		}
		return true
	})
	return marked
}

// directives are the lines of a comment that its text leaves out.
func directives(doc *ast.CommentGroup) string {
	var b strings.Builder
	if doc != nil {
		for _, c := range doc.List {
			b.WriteString(c.Text + "\n")
		}
	}
	return b.String()
}

func reach(t reflect.Type, found map[string]bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[corev1.PodSpec]().PkgPath() || found[t.Name()] {
		return
	}
	found[t.Name()] = true
	for i := range t.NumField() {
		reach(t.Field(i).Type, found)
	}
}

// In every place, a gated field is refused by its path.
func TestGatedFieldsAreRefusedByPath(t *testing.T) {
	found := map[string]bool{}
	var set func(v reflect.Value, path string, depth int)
	var spec *corev1.PodSpec
	set = func(v reflect.Value, path string, depth int) {
		switch v.Kind() {
		case reflect.Pointer:
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			set(v.Elem(), path, depth)
			v.Set(reflect.Zero(v.Type()))
		case reflect.Slice:
			if v.Type().Elem().Kind() != reflect.Struct {
				return
			}
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			set(v.Index(0), path+"[0]", depth)
			v.Set(reflect.Zero(v.Type()))
		case reflect.Struct:
			if v.Type().PkgPath() != reflect.TypeFor[corev1.PodSpec]().PkgPath() {
				return
			}
			for i := range v.NumField() {
				f, of := v.Field(i), v.Type().Field(i)
				name, _, _ := strings.Cut(of.Tag.Get("json"), ",")
				below := path
				if name != "" {
					below += "." + name
				}
				if gated[v.Type().Name()+"."+of.Name] == "" {
					set(f, below, depth+1)
					continue
				}
				switch f.Kind() {
				case reflect.Pointer:
					f.Set(reflect.New(f.Type().Elem()))
				case reflect.Slice:
					f.Set(reflect.MakeSlice(f.Type(), 1, 1))
				default:
					t.Fatalf("%s: what is set of a %s?", below, f.Kind())
				}
				var paths []string
				for _, err := range Validate(spec, field.NewPath("spec")) {
					paths = append(paths, err.Field)
				}
				if !slices.Equal(paths, []string{below}) {
					t.Errorf("%s is set, %q are refused", below, paths)
				}
				found[v.Type().Name()+"."+of.Name] = true
				f.Set(reflect.Zero(f.Type()))
			}
		}
	}
	spec = &corev1.PodSpec{}
	set(reflect.ValueOf(spec).Elem(), "spec", 0)
	for of := range gated {
		if !found[of] {
			t.Errorf("%s was never tried", of)
		}
	}
}

// renamed are gates that the API's source marks by another name than the one that they have.
var renamed = map[string]string{"PodCertificateProjection": "PodCertificateRequest"}

// The defaults are those of Kubernetes itself, whose source only the conformance suite needs.
func TestGatesAreAsInKubernetes(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	cmd.Dir = "../../../../cluster-test/conformance/upstream"
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=off", "GOFLAGS=")
	dir, err := cmd.Output()
	if folder := strings.TrimSpace(string(dir)); err != nil || folder == "" {
		needs.Missing(t, "k8s.io/kubernetes in the module cache (`make conformance` gets it)",
			"that the defaults of gates are upstream's")
	}
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "pkg/features/kube_features.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(source), "var defaultVersionedKubernetesFeatureGates = ")
	if !ok {
		t.Fatal("the table of gates is not where it was")
	}
	block := regexp.MustCompile(`(?s)\n\t(\w+): \{\n(.*?)\n\t\},`)
	state := regexp.MustCompile(`Default: (true|false)`)
	defaults := map[string]bool{}
	for _, m := range block.FindAllStringSubmatch(table, -1) {
		if all := state.FindAllStringSubmatch(m[2], -1); len(all) > 0 {
			defaults[m[1]] = all[len(all)-1][1] == "true"
		}
	}
	for gate, on := range gates {
		name := cmp.Or(renamed[gate], gate)
		if want, known := defaults[name]; !known || want != on {
			t.Errorf("%s: on is %v here; in Kubernetes it is %v (known: %v)", gate, on, want, known)
		}
	}
}
