"""Tasks of the agent, for training and for evaluation. Replace them with your own.

A task is a question and its reference answer. Further keys are kept with the run. A function that
returns such mappings works, too, and `hrm_agent.training.tasks.Task` takes your own verifier.
"""

from __future__ import annotations

__all__ = ["tasks"]

tasks = {
    "train": [
        {
            "question": "A tank holds 1270 L. It leaks 4% per hour for 4 hours, then is refilled by 268 L. "
            "How many liters are in it? Round to 2 decimals.",
            "answer": "1346.67",
        },
        {
            "question": "Dan buys 55 plums at 49 coins each and 88 pears at 50 coins each. "
            "How many coins does Dan pay?",
            "answer": "7095",
        },
        {
            "question": "Hana packs 39 boxes with 76 stamps each, then gives away 338 stamps. "
            "How many stamps are left?",
            "answer": "2626",
        },
        {
            "question": "Ada has 7169 coins and buys 35 books at 19 coins each. How many coins does Ada keep?",
            "answer": "6504",
        },
        {
            "question": "A train drives 196 km per hour for 50 hours, then 186 km per hour for 40 hours. "
            "How many km does it drive?",
            "answer": "17240",
        },
        {
            "question": "Cleo finds 360 pears and 870 apples and shares them equally among 10 friends. "
            "How many does each friend get?",
            "answer": "123",
        },
        {
            "question": "Ada has 546 coins and saves 88 coins a week for 27 weeks. How many coins does Ada have then?",
            "answer": "2922",
        },
        {
            "question": "A field is 634 m long and 208 m wide. A fence goes around it 4 times. "
            "How many m of fence are that?",
            "answer": "6736",
        },
        {
            "question": "A bakery bakes 176 rolls a day, sells 110 of them and keeps the rest, for 68 days. "
            "How many rolls does it keep?",
            "answer": "4488",
        },
        {
            "question": "A farm keeps 953 hens and 191 cows. How many legs do they have?",
            "answer": "2670",
        },
        {
            "question": "A tank holds 1150 L. It leaks 7% per hour for 4 hours, then is refilled by 195 L. "
            "How many liters are in it? Round to 2 decimals.",
            "answer": "1055.26",
        },
        {
            "question": "Finn buys 54 apples at 24 coins each and 87 stamps at 18 coins each. "
            "How many coins does Finn pay?",
            "answer": "2862",
        },
    ],
    "eval": [
        {
            "question": "A tank holds 1070 L. It leaks 4% per hour for 3 hours, then is refilled by 241 L. "
            "How many liters are in it? Round to 2 decimals.",
            "answer": "1187.67",
        },
        {
            "question": "Finn buys 80 pears at 66 coins each and 92 cards at 30 coins each. "
            "How many coins does Finn pay?",
            "answer": "8040",
        },
        {
            "question": "Cleo packs 29 boxes with 52 stamps each, then gives away 910 stamps. "
            "How many stamps are left?",
            "answer": "598",
        },
        {
            "question": "Ada has 4380 coins and buys 28 stamps at 45 coins each. How many coins does Ada keep?",
            "answer": "3120",
        },
        {
            "question": "A train drives 225 km per hour for 42 hours, then 294 km per hour for 36 hours. "
            "How many km does it drive?",
            "answer": "20034",
        },
        {
            "question": "Ben finds 389 shells and 482 pears and shares them equally among 13 friends. "
            "How many does each friend get?",
            "answer": "67",
        },
        {
            "question": "Cleo has 361 coins and saves 28 coins a week for 81 weeks. "
            "How many coins does Cleo have then?",
            "answer": "2629",
        },
        {
            "question": "A field is 497 m long and 870 m wide. A fence goes around it 8 times. "
            "How many m of fence are that?",
            "answer": "21872",
        },
    ],
}
