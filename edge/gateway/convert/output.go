package convert

import (
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// Write writes the objects as YAML, with losses and notes as comments before the routes of their
// Ingress.
func (r *Result) Write(to io.Writer) error {
	w := new(strings.Builder)
	for _, g := range r.Gateways {
		if err := write(w, g); err != nil {
			return err
		}
	}
	for i := range r.Ingresses {
		in := &r.Ingresses[i]
		w.WriteString("---\n# Ingress " + in.title() + "\n")
		if in.LeftOut {
			w.WriteString(
				"# It is left out. What it lacks in the Gateway API would open it, or send requests elsewhere:\n")
		}
		for _, text := range in.Losses {
			w.WriteString("# LOST: " + commented(text) + "\n")
		}
		for _, text := range in.Notes {
			w.WriteString("# " + commented(text) + "\n")
		}
		for j, route := range in.Routes {
			if err := write(w, route, j == 0); err != nil {
				return err
			}
		}
	}
	_, err := io.WriteString(to, w.String())
	return err
}

// title is the Ingress as NAMESPACE/NAME.
func (i *Ingress) title() string {
	if i.Name.Namespace == "" {
		return i.Name.Name
	}
	return i.Name.String()
}

// Losses lists the losses, one a line, with their Ingress.
func (r *Result) Losses() (lines []string) {
	for i := range r.Ingresses {
		in := &r.Ingresses[i]
		what := "Ingress " + in.title()
		if in.LeftOut {
			what += " is left out"
		}
		for _, text := range in.Losses {
			lines = append(lines, what+": "+text)
		}
	}
	return lines
}

// commented keeps a text on one line: an annotation may have several.
func commented(text string) string { return strings.Join(strings.Fields(text), " ") }

// write writes an object without the fields that a server fills in. begun means that its document
// has begun with comments.
func write(w io.Writer, object any, begun ...bool) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	delete(fields, "status")
	if meta, ok := fields["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
	}
	text, err := yaml.Marshal(fields)
	if err != nil {
		return err
	}
	if len(begun) == 0 || !begun[0] {
		fmt.Fprint(w, "---\n")
	}
	_, err = w.Write(text)
	return err
}
