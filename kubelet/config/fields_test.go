package config

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// namesOf returns the names that the fields of a type have in files.
func namesOf(of reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for field := range of.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous && (name == "" || options == "inline") {
			maps.Copy(out, namesOf(field.Type))
			continue
		}
		out[name] = field.Type
	}
	return out
}

// TestEveryFieldHasItsPlace: each field of the type counts, or has a fixed value, or is harmless
// without effect. A field of a new version of Kubernetes has none of these places yet.
func TestEveryFieldHasItsPlace(t *testing.T) {
	all := namesOf(reflect.TypeFor[Configuration]())
	if len(all) < 120 {
		t.Fatalf("only %d fields are seen", len(all))
	}
	for name := range all {
		places := 0
		for _, in := range []bool{slices.Contains(honoured, name), fixed[name] != nil, harmless[name] != ""} {
			if in {
				places++
			}
		}
		if places != 1 {
			t.Errorf("%s is in %d of honoured, fixed and harmless, want 1", name, places)
		}
	}
	for _, name := range slices.Concat(honoured, slices.Collect(maps.Keys(fixed)),
		slices.Collect(maps.Keys(harmless))) {
		if all[name] == nil {
			t.Errorf("%s is no field of a KubeletConfiguration", name)
		}
	}
}

// TestEveryInnerField: the fields about security that have fields have these, which are looked at.
func TestEveryInnerField(t *testing.T) {
	all := namesOf(reflect.TypeFor[Configuration]())
	seen := map[string]bool{}
	var walk func(path string, of reflect.Type)
	walk = func(path string, of reflect.Type) {
		for of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || strings.HasSuffix(of.PkgPath(), "apis/meta/v1") {
			seen[path] = true
			return
		}
		for name, inner := range namesOf(of) {
			walk(path+"."+name, inner)
		}
	}
	for _, name := range []string{"authentication", "authorization", "memorySwap", "userNamespaces"} {
		walk(name, all[name])
	}
	want := []string{"authentication.anonymous.enabled", "authentication.webhook.cacheTTL",
		"authentication.webhook.enabled", "authentication.x509.clientCAFile",
		"authorization.mode", "authorization.webhook.cacheAuthorizedTTL", "authorization.webhook.cacheUnauthorizedTTL",
		"memorySwap.swapBehavior", "userNamespaces.idsPerPod"}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("fields %v, want %v: honour or refuse the new ones in security.go", got, want)
	}
}

// TestThePageListsTheFields: docs/node.md has each field, in the table of its place.
func TestThePageListsTheFields(t *testing.T) {
	raw, err := os.ReadFile("../../docs/node.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	between := func(from, to string) string {
		_, rest, ok := strings.Cut(page, from)
		part, _, end := strings.Cut(rest, to)
		if !ok || !end {
			t.Fatalf("the page has no part between %q and %q", from, to)
		}
		return part
	}
	row, code := regexp.MustCompile(`(?m)^\| (.*?) \|`), regexp.MustCompile("`([a-zA-Z0-9.]+)`")
	listed := func(part string) (out []string) {
		for _, line := range row.FindAllStringSubmatch(part, -1) {
			of := ""
			for _, name := range code.FindAllStringSubmatch(line[1], -1) {
				parent, _, nested := strings.Cut(name[1], ".")
				switch {
				case nested:
					of = parent
				case of != "" && namesOf(reflect.TypeFor[Configuration]())[name[1]] == nil:
					continue // one more field of the same one
				}
				out = append(out, parent)
			}
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	effective := slices.DeleteFunc(slices.Clone(honoured),
		func(name string) bool { return name == "kind" || name == "apiVersion" })
	slices.Sort(effective)
	for place, lists := range map[string][2][]string{
		"effective": {
			slices.DeleteFunc(listed(between("## Configuration\n", "### Fields about security\n")),
				func(name string) bool { return fixed[name] != nil }), effective},
		"fixed": {
			append(listed(between("### Fields about security\n", "### Fields without effect\n")), "serverTLSBootstrap"),
			slices.Collect(maps.Keys(fixed))},
		"harmless": {listed(between("### Fields without effect\n", "\nThe CPU weight")),
			slices.Collect(maps.Keys(harmless))},
	} {
		got, want := lists[0], lists[1]
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the page has\n%v, and the code\n%v", place, got, want)
		}
	}
}
