package settings

import (
	"bytes"
	"fmt"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Setting is one setting of a file that is written.
type Setting struct {
	Name   string
	Values []string
	// List is set for a setting that takes several values.
	List bool
}

// Of returns the setting that has the value of a flag.
func Of(f *pflag.Flag) Setting {
	if list, is := f.Value.(pflag.SliceValue); is {
		return Setting{Name: f.Name, Values: list.GetSlice(), List: true}
	}
	return Setting{Name: f.Name, Values: []string{f.Value.String()}}
}

// Lines returns the settings as lines of a file, which Load reads back as they are.
func Lines(all []Setting) ([]byte, error) {
	if len(all) == 0 {
		return nil, nil
	}
	top := &yaml.Node{Kind: yaml.MappingNode}
	for _, s := range all {
		var value *yaml.Node
		switch {
		case s.List:
			value = &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
			for _, v := range s.Values {
				value.Content = append(value.Content, scalar(v))
			}
		case len(s.Values) != 1:
			return nil, fmt.Errorf("%s takes one value, and has %d", s.Name, len(s.Values))
		default:
			value = scalar(s.Values[0])
		}
		top.Content = append(top.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: s.Name}, value)
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(top); err != nil {
		return nil, err
	}
	return out.Bytes(), encoder.Close()
}

// scalar is a value as it is written. Only a value that YAML would read as none has to be quoted.
func scalar(value string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: value}
	if value == "" || value == "~" || value == "null" || value == "Null" || value == "NULL" {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// Append returns a file's text with more settings at its end. It fails where they would not be read
// there, as behind the end of a document or a text in braces.
func Append(file string, text []byte, more []Setting) ([]byte, error) {
	lines, err := Lines(more)
	if err != nil || len(lines) == 0 {
		return text, err
	}
	before, err := parse(file, text)
	if err != nil {
		return nil, err
	}
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(bytes.Clone(text), '\n')
	}
	whole := append(bytes.Clone(text), lines...)
	after, err := parse(file, whole)
	if err == nil && len(after) != len(before)+len(more) {
		err = fmt.Errorf("they would not be read there")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: nothing can be added at its end (%w): add these lines to it yourself:\n%s", file,
			err, lines)
	}
	return whole, nil
}
