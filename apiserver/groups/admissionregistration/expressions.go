package admissionregistration

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/barque/barque/apiserver/groups/validation"
)

// maxConditions is how many match conditions a webhook or policy may have.
const maxConditions = 64

// compiler compiles expressions that use no variables of a policy. It has no state.
var compiler = sync.OnceValue(func() plugincel.Compiler { return plugincel.NewCompiler(baseEnvironment()) })

func baseEnvironment() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
}

// expressions checks the CEL expressions of one object.
type expressions struct {
	// params is set if the object names parameters, which expressions may use.
	params bool
	// stored are the expressions that the object had before. They may use features of newer
	// versions.
	stored sets.Set[string]
	// composed is the compiler that knows the variables of the object; nil without variables.
	composed *plugincel.CompositedCompiler
}

// environment in which an expression is compiled.
func (e *expressions) environment(expression string) environment.Type {
	if e.stored.Has(expression) {
		return environment.StoredExpressions
	}
	return environment.NewExpressions
}

// options are the variables of all expressions, except those of messages.
func (e *expressions) options() plugincel.OptionalVariableDeclarations {
	return plugincel.OptionalVariableDeclarations{HasParams: e.params, HasAuthorizer: true}
}

// compile checks one expression, which may use the variables of the object.
func (e *expressions) compile(
	x plugincel.ExpressionAccessor, may plugincel.OptionalVariableDeclarations, at *field.Path,
) field.ErrorList {
	with := compiler()
	if e.composed != nil {
		with = e.composed
	}
	return e.compileBy(with, x, may, at)
}

func (e *expressions) compileBy(
	with plugincel.Compiler, x plugincel.ExpressionAccessor, may plugincel.OptionalVariableDeclarations, at *field.Path,
) field.ErrorList {
	return wrong(x, with.CompileCELExpression(x, may, e.environment(x.GetExpression())).Error, at)
}

func wrong(x plugincel.ExpressionAccessor, err *cel.Error, at *field.Path) field.ErrorList {
	if err == nil {
		return nil
	}
	switch err.Type {
	case cel.ErrorTypeRequired:
		return field.ErrorList{field.Required(at, err.Detail)}
	case cel.ErrorTypeInvalid:
		return field.ErrorList{field.Invalid(at, x.GetExpression(), err.Detail)}
	}
	return field.ErrorList{field.InternalError(at, err)}
}

// conditions checks match conditions. They come before variables, so that they cannot use them.
func (e *expressions) conditions(list []admissionv1.MatchCondition, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(list) > maxConditions {
		errs = append(errs, field.TooMany(at, len(list), maxConditions))
	}
	names := sets.New[string]()
	for i, c := range list {
		in := at.Index(i)
		if text := strings.TrimSpace(c.Expression); text == "" {
			errs = append(errs, field.Required(in.Child("expression"), ""))
		} else {
			errs = append(errs,
				e.compileBy(compiler(), &matchconditions.MatchCondition{Name: c.Name, Expression: text}, e.options(),
					in.Child("expression"))...)
		}
		errs = append(errs, validation.QualifiedName(c.Name, in.Child("name"))...)
		if c.Name != "" && names.Has(c.Name) {
			errs = append(errs, field.Duplicate(in.Child("name"), c.Name))
		}
		names.Insert(c.Name)
	}
	return errs
}

// variables checks the variables of a policy and makes them known to later expressions.
func (e *expressions) variables(list []admissionv1.Variable, at *field.Path) field.ErrorList {
	if len(list) == 0 {
		return nil
	}
	var err error
	if e.composed, err = plugincel.NewCompositedCompiler(baseEnvironment()); err != nil {
		return field.ErrorList{field.InternalError(at, fmt.Errorf("preparing variables: %w", err))}
	}
	var errs field.ErrorList
	for i, v := range list {
		in := at.Index(i)
		switch {
		case strings.TrimSpace(v.Name) == "":
			errs = append(errs, field.Required(in.Child("name"), "name is not specified"))
		case !isIdentifier(v.Name):
			errs = append(errs, field.Invalid(in.Child("name"), v.Name, "must be a valid CEL identifier"))
		}
		if strings.TrimSpace(v.Expression) == "" {
			errs = append(errs, field.Required(in.Child("expression"), "expression is not specified"))
			continue
		}
		x := &validating.Variable{Name: v.Name, Expression: v.Expression}
		result := e.composed.CompileAndStoreVariable(x, e.options(), e.environment(v.Expression))
		errs = append(errs, wrong(x, result.Error, in.Child("expression"))...)
	}
	return errs
}

var identifier = regexp.MustCompile("^[_a-zA-Z][_a-zA-Z0-9]*$")

// reserved are the words that CEL keeps for itself.
var reserved = []string{
	"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
	"loop", "package", "namespace", "return", "var", "void", "while",
}

func isIdentifier(name string) bool {
	return identifier.MatchString(name) && !slices.Contains(reserved, name)
}
