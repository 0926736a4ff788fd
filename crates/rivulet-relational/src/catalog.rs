//! What names stand for while a query is planned.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{Column, DFSchema, Result, TableReference};
use datafusion_expr::expr::{AggregateFunction, WindowFunction, WindowFunctionParams};
use datafusion_expr::planner::{
    ContextProvider, ExprPlanner, PlannerResult, RawAggregateExpr, RawDictionaryExpr, RawWindowExpr, RelationPlanner,
    TypePlanner,
};
use datafusion_expr::utils::COUNT_STAR_EXPANSION;
use datafusion_expr::{
    AggregateUDF, Expr, HigherOrderUDF, LogicalPlan, ScalarUDF, TableSource, WindowFunctionDefinition, WindowUDF, lit,
};
use datafusion_functions::core::planner::CoreFunctionPlanner;
use datafusion_sql::sqlparser::ast;
use rivulet_dataflow::is_json;

use crate::decimals::ExactNumbers;
use crate::error::{Problem, RelationalError};
use crate::functions;
use crate::matches::RowPattern;
use crate::subscripts::PART;
use crate::table_function::TableFunctions;
use crate::times::TIMESTAMP;

/// Does the arithmetic over constants in an expression, before the optimizer does it in another way.
pub type FoldConstants = fn(Expr) -> Result<Transformed<Expr>>;

/// The relations and functions that a query may name.
pub struct Catalog {
    relations: HashMap<String, Arc<dyn TableSource>>,
    /// The names of the relations that have rows at any time and are not streams.
    tables: HashSet<String>,
    scalars: HashMap<String, Arc<ScalarUDF>>,
    aggregates: HashMap<String, Arc<AggregateUDF>>,
    windows: HashMap<String, Arc<WindowUDF>>,
    pub(crate) fold: FoldConstants,
    pub(crate) options: Arc<ConfigOptions>,
    expressions: Vec<Arc<dyn ExprPlanner>>,
    relation_planners: Vec<Arc<dyn RelationPlanner>>,
    types: Arc<dyn TypePlanner>,
}

impl Catalog {
    /// Makes a catalog without relations, with these functions by all their names and the functions of this crate.
    /// `fold` does arithmetic over constants.
    pub fn new(
        scalars: impl IntoIterator<Item = (String, Arc<ScalarUDF>)>,
        aggregates: impl IntoIterator<Item = (String, Arc<AggregateUDF>)>,
        fold: FoldConstants,
    ) -> Self {
        let mut options = ConfigOptions::default();
        // Text has one type, and so do numbers with a point.
        options.sql_parser.map_string_types_to_utf8view = false;
        options.sql_parser.parse_float_as_decimal = false;
        options.sql_parser.collect_spans = true;
        options.sql_parser.enable_ident_normalization = true;
        // A subquery that gives one value becomes a join with one row, which follows the value when it changes. No plan
        // runs it once beforehand.
        options.optimizer.enable_physical_uncorrelated_scalar_subquery = false;
        let own = functions::placeholders().into_iter().map(|function| (function.name().to_owned(), function));
        let scalars: HashMap<String, Arc<ScalarUDF>> = scalars.into_iter().chain(own).collect();
        let aggregates: HashMap<_, _> = aggregates.into_iter().chain([functions::grouping()]).collect();
        let function = |name: &str| scalars.get(name).cloned();
        let syntax = Syntax { core: CoreFunctionPlanner {}, overlay: function("overlay"), part: function(PART) };
        Self {
            relations: HashMap::new(),
            tables: HashSet::new(),
            scalars,
            expressions: vec![
                Arc::new(Aggregates {
                    values: functions::VALUES.iter().filter_map(|name| aggregates.get(*name).cloned()).collect(),
                }),
                Arc::new(ExactNumbers),
                Arc::new(datafusion_functions::datetime::planner::DatetimeFunctionPlanner),
                Arc::new(datafusion_functions::unicode::planner::UnicodeFunctionPlanner),
                Arc::new(syntax),
            ],
            aggregates,
            windows: functions::over_functions().collect(),
            fold,
            options: Arc::new(options),
            relation_planners: vec![Arc::new(TableFunctions::default())],
            types: Arc::new(Types),
        }
    }

    /// Adds a relation. Names are compared as they are; unquoted names in queries are in lower case.
    pub fn add(&mut self, name: impl Into<String>, relation: Arc<dyn TableSource>) {
        self.relations.insert(name.into(), relation);
    }

    /// Adds a relation that has rows at any time, so that `FOR SYSTEM_TIME AS OF` may follow its name.
    pub fn add_table(&mut self, name: impl Into<String>, relation: Arc<dyn TableSource>) {
        let name = name.into();
        self.tables.insert(name.clone());
        self.relations.insert(name, relation);
    }

    /// Adds a view: its plan takes the place of its name.
    pub fn add_view(&mut self, name: impl Into<String>, plan: Arc<LogicalPlan>) {
        self.relations.insert(name.into(), Arc::new(ViewSource { plan }));
    }

    /// Sets the row patterns of the query that is planned.
    #[must_use]
    pub fn with_patterns(mut self, patterns: Vec<Arc<dyn RowPattern>>) -> Self {
        self.relation_planners = vec![Arc::new(TableFunctions { patterns })];
        self
    }

    pub(crate) fn is_table(&self, name: &str) -> bool {
        self.tables.contains(name)
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog").field("relations", &self.relations.keys()).finish_non_exhaustive()
    }
}

/// A view, as the planner sees it for a query that reads it: only columns. Its plan is inserted afterwards, so that the
/// planner does not walk over it each time.
pub(crate) struct ViewSource {
    pub(crate) plan: Arc<LogicalPlan>,
}

impl TableSource for ViewSource {
    fn schema(&self) -> SchemaRef {
        self.plan.schema().inner().clone()
    }
}

impl ContextProvider for Catalog {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>> {
        let unknown = || {
            let name = name.to_string().replace('"', "");
            RelationalError { problem: Problem::UnknownRelation(name), place: None, hint: None }.boxed()
        };
        match &name {
            TableReference::Bare { table } => self.relations.get(table.as_ref()).cloned().ok_or_else(unknown),
            // Inputs and outputs of an application have a name of two parts.
            TableReference::Partial { schema, table } => {
                self.relations.get(&format!("{schema}.{table}")).cloned().ok_or_else(unknown)
            }
            _ => Err(unknown()),
        }
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.expressions
    }

    fn get_relation_planners(&self) -> &[Arc<dyn RelationPlanner>] {
        &self.relation_planners
    }

    fn get_type_planner(&self) -> Option<Arc<dyn TypePlanner>> {
        Some(self.types.clone())
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.scalars.get(name).cloned()
    }

    fn get_higher_order_meta(&self, _name: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.aggregates.get(name).cloned()
    }

    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        self.windows.get(name).cloned()
    }

    fn get_variable_type(&self, _variable_names: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.options
    }

    fn udf_names(&self) -> Vec<String> {
        self.scalars.keys().cloned().collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        self.aggregates.keys().cloned().collect()
    }

    fn udwf_names(&self) -> Vec<String> {
        self.windows.keys().cloned().collect()
    }
}

/// Reads `count(*)` and `count()` as the count of a constant, so that all three are the same; and `first_value` and
/// `last_value` with OVER as the aggregates `values`, in whose place the planner takes window functions.
#[derive(Debug)]
struct Aggregates {
    values: Vec<Arc<AggregateUDF>>,
}

impl ExprPlanner for Aggregates {
    fn plan_aggregate(&self, raw: RawAggregateExpr) -> Result<PlannerResult<RawAggregateExpr>> {
        #[expect(deprecated, reason = "the planner itself still gives it")]
        let counts_rows = raw.func.name() == "count" && matches!(raw.args.as_slice(), [] | [Expr::Wildcard { .. }]);
        if !counts_rows || raw.distinct {
            return Ok(with_conversions_named(raw));
        }
        let one = vec![Expr::Literal(COUNT_STAR_EXPANSION, None)];
        let count = AggregateFunction::new_udf(raw.func, one, false, raw.filter, raw.order_by, raw.null_treatment);
        Ok(PlannerResult::Planned(Expr::AggregateFunction(count).alias("count(*)")))
    }

    fn plan_window(&self, mut raw: RawWindowExpr) -> Result<PlannerResult<RawWindowExpr>> {
        if let Some(value) = self.values.iter().find(|value| value.name() == raw.func_def.name()) {
            raw.func_def = WindowFunctionDefinition::AggregateUDF(value.clone());
        }
        #[expect(deprecated, reason = "the planner itself still gives it")]
        let counts_rows = raw.func_def.name() == "count" && matches!(raw.args.as_slice(), [] | [Expr::Wildcard { .. }]);
        if !counts_rows || raw.distinct {
            return Ok(PlannerResult::Original(raw));
        }
        let params = WindowFunctionParams {
            args: vec![Expr::Literal(COUNT_STAR_EXPANSION, None)],
            partition_by: raw.partition_by,
            order_by: raw.order_by,
            window_frame: raw.window_frame,
            filter: raw.filter,
            null_treatment: raw.null_treatment,
            distinct: false,
        };
        let count = WindowFunction { fun: raw.func_def, params };
        Ok(PlannerResult::Planned(Expr::WindowFunction(Box::new(count))))
    }
}

/// Puts the conversions of an aggregate into its name, as the planner names columns: otherwise `sum(d)` and
/// `sum(CAST(d AS BIGINT))` would be one column. Readers of the result see the old name.
fn with_conversions_named(raw: RawAggregateExpr) -> PlannerResult<RawAggregateExpr> {
    let converts = |argument: &Expr| {
        let is_cast = |part: &Expr| Ok(matches!(part, Expr::Cast(_) | Expr::TryCast(_)));
        argument.exists(is_cast).unwrap_or(false)
    };
    if !raw.args.iter().any(converts) {
        return PlannerResult::Original(raw);
    }
    let RawAggregateExpr { func, args, distinct, filter, order_by, null_treatment } = raw;
    let call = |args: Vec<Expr>| {
        let (func, filter, order_by) = (func.clone(), filter.clone(), order_by.clone());
        Expr::AggregateFunction(AggregateFunction::new_udf(func, args, distinct, filter, order_by, null_treatment))
    };
    let name = call(args.clone()).schema_name().to_string();
    let named = args.into_iter().map(|argument| match converts(&argument) {
        true => {
            let name = argument.to_string();
            argument.alias(name)
        }
        false => argument,
    });
    PlannerResult::Planned(call(named.collect()).alias(name))
}

/// Plans syntax as DataFusion does, with the given functions, except for parts of columns. Those of a column that holds
/// JSON are found by a function. Others have no parts: `v.id` is an error ([`Problem::FieldOfColumn`]), by which
/// [`aliases`](crate::aliases) finds that an input is meant.
#[derive(Debug)]
struct Syntax {
    core: CoreFunctionPlanner,
    overlay: Option<Arc<ScalarUDF>>,
    part: Option<Arc<ScalarUDF>>,
}

impl ExprPlanner for Syntax {
    fn plan_dictionary_literal(
        &self,
        raw: RawDictionaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawDictionaryExpr>> {
        self.core.plan_dictionary_literal(raw, schema)
    }

    fn plan_struct_literal(&self, values: Vec<Expr>, is_named: bool) -> Result<PlannerResult<Vec<Expr>>> {
        self.core.plan_struct_literal(values, is_named)
    }

    fn plan_compound_identifier(
        &self,
        field: &Field,
        qualifier: Option<&TableReference>,
        nested_names: &[String],
    ) -> Result<PlannerResult<Vec<Expr>>> {
        Ok(match &self.part {
            Some(part) if is_json(field) => {
                let column = Expr::Column(Column::new(qualifier.cloned(), field.name()));
                PlannerResult::Planned(
                    nested_names.iter().fold(column, |whole, name| part.call(vec![whole, lit(name)])),
                )
            }
            _ => PlannerResult::Original(Vec::new()),
        })
    }

    fn plan_overlay(&self, arguments: Vec<Expr>) -> Result<PlannerResult<Vec<Expr>>> {
        Ok(match &self.overlay {
            Some(overlay) => PlannerResult::Planned(overlay.call(arguments)),
            None => PlannerResult::Original(arguments),
        })
    }
}

/// The types of casts, as [`spelling`](crate::spelling) leaves them. Integer types other than BIGINT are types that a
/// value must fit on its way to BIGINT.
#[derive(Debug)]
struct Types;

impl TypePlanner for Types {
    fn plan_type_field(&self, sql_type: &ast::DataType) -> Result<Option<FieldRef>> {
        use ast::DataType as Sql;
        let data_type = match sql_type {
            Sql::Timestamp(..) => TIMESTAMP,
            Sql::TinyInt(_) => DataType::Int8,
            Sql::SmallInt(_) => DataType::Int16,
            Sql::Int(_) => DataType::Int32,
            Sql::BigInt(_) => DataType::Int64,
            Sql::Double(_) => DataType::Float64,
            Sql::Text => DataType::Utf8,
            _ => return Ok(None),
        };
        Ok(Some(Arc::new(Field::new("", data_type, true))))
    }
}
