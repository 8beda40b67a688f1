"""A text of many kinds (prose, talk, instructions, code, numbers, languages), on which models are compared when no
other is given. It was written for this purpose."""

from __future__ import annotations

SAMPLE = """The lighthouse keeper had not spoken to anyone for eleven days when the boat came. It was a small boat, with
a patched sail and a single passenger, and it took most of the afternoon to cross the bay. He watched it from the
gallery, wiping the same pane of glass over and over, until the woman at the tiller raised her hand. "You are early," he
called down to her. "The supplies are not due before Friday."

"I am not the supplies," she said. "I am your replacement. Did nobody write to you?"

He thought about the letters in the drawer of the kitchen table, which he had stopped opening in the spring, and went
down the stairs to help her with the rope. There were one hundred and sixty-three steps; he had counted them every night
for nineteen years, and for the first time he lost count somewhere near the middle.

Photosynthesis is the process by which green plants, algae and some bacteria turn light into chemical energy. Light is
absorbed by chlorophyll, a pigment that reflects green and takes up most of the red and blue. Water is split into
oxygen, which leaves the leaf as a gas, and hydrogen, whose electrons pass along a chain of proteins. The energy that is
gained on the way is stored in small molecules, and these drive a second series of reactions, in which carbon dioxide
from the air becomes sugar. On a warm day a large tree may take in more than twenty kilograms of carbon dioxide,
although most of it is given back at night, when the tree breathes as animals do.

How to make a simple vegetable soup for four people:
1. Peel two onions, three carrots and four potatoes, and cut them into small pieces.
2. Heat two spoons of olive oil in a large pot, and cook the onions slowly until they are soft.
3. Add the carrots and the potatoes, a litre and a half of water, a bay leaf and a little salt.
4. Let it boil gently for twenty-five minutes. Taste it, and add pepper or lemon juice if you like.
5. Take out the bay leaf before serving. The soup is even better on the next day.

Question: What is the difference between weather and climate?
Answer: Weather is what the atmosphere does at a certain place and time, such as rain on Tuesday morning. Climate is the
average of the weather over many years, usually thirty or more. One cold winter says little about the climate, just as a
single throw of a die says little about whether the die is fair.

def merge(left, right):
    \"\"\"Two sorted lists as one.\"\"\"
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    return result + left[i:] + right[j:]


def merge_sort(items):
    if len(items) < 2:
        return items
    middle = len(items) // 2
    return merge(merge_sort(items[:middle]), merge_sort(items[middle:]))


print(merge_sort([5, 2, 9, 1, 7, 3]))  # [1, 2, 3, 5, 7, 9]

#include <stdio.h>

int main(int argc, char **argv) {
    long sum = 0;
    for (int i = 1; i <= 100; i++) {
        if (i % 3 == 0 || i % 5 == 0) {
            sum += i;
        }
    }
    printf("The sum is %ld\\n", sum);
    return 0;
}

SELECT customers.name, COUNT(orders.id) AS number, SUM(orders.total) AS spent
FROM customers
JOIN orders ON orders.customer_id = customers.id
WHERE orders.created_at >= '2024-01-01'
GROUP BY customers.name
HAVING COUNT(orders.id) > 3
ORDER BY spent DESC
LIMIT 10;

{"station": "North Pier", "readings": [{"time": "06:00", "celsius": 11.4, "wind": {"speed": 7.2, "from": "SW"}},
{"time": "09:00", "celsius": 13.9, "wind": {"speed": 8.8, "from": "SW"}}, {"time": "12:00", "celsius": 16.1, "wind":
{"speed": 9.5, "from": "W"}}], "checked": true, "remarks": null}

| year | visitors | income | change |
|------|----------|--------|--------|
| 2019 | 48,210 | 1,205,250 | |
| 2020 | 12,034 | 312,884 | -74.0 % |
| 2021 | 23,977 | 647,379 | +106.9 % |
| 2022 | 41,560 | 1,163,680 | +79.8 % |

12 + 30 = 42, 7 * 8 = 56, 144 / 12 = 12, 2 to the power of 10 is 1024, and the square root of 81 is 9. If a train leaves
at 14:35 and takes 2 hours and 50 minutes, it arrives at 17:25. Three apples at 45 cents and two loaves at 2.30 each
cost 5.95 together. The first prime numbers are 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43 and 47.

Il pleuvait depuis le matin, et la petite place devant la gare était presque vide. Un homme attendait sous l'horloge, un
journal plié sous le bras. Quand le train de Lyon arriva enfin, avec quarante minutes de retard, il ne regarda même pas
les voyageurs qui descendaient. Il avait reconnu, à la fenêtre du dernier wagon, le chapeau rouge de sa sœur.

Die Stadt liegt an einem breiten Fluss, der im Winter manchmal zufriert. Früher brachten Schiffe Salz und Holz in den
Hafen; heute stehen dort Cafés, und abends sitzen die Leute auf den Stufen am Wasser. Wer vom anderen Ufer herüberkommt,
sieht zuerst die beiden Türme der Kirche und dann die alte Brücke, die nach dem Krieg wieder aufgebaut wurde.

La abuela guardaba las cartas en una caja de madera, debajo de la cama. Cada domingo, después de comer, sacaba una y la
leía en voz alta, aunque todos la sabíamos de memoria. Hablaban de un barco, de una ciudad con tranvías y de un perro
que se llamaba Capitán.

Il mercato si tiene ogni sabato nella piazza principale. I contadini arrivano prima dell'alba con frutta, verdura,
formaggio e fiori, e a mezzogiorno non resta quasi più niente sui banchi.

Зимой деревня была почти пуста. Дороги заносило снегом, и почту привозили только раз в неделю. Зато по вечерам в каждом
доме горел свет, соседи собирались возле печки и рассказывали истории, которые слышали ещё от своих дедов.

春天来了,山上的雪开始融化,河水一天比一天高。村里的孩子们放学以后都到河边去,看大人们修桥。老木匠说,这座桥比他的爷爷还要老,
只要每年修一次,再用一百年也没有问题。

昨日は朝から雨が降っていたので、図書館で本を読んで過ごしました。夕方になると空が晴れて、窓の外に大きな虹が見えました。

The committee met on 14 March to discuss the new library. Mrs. Alvarez presented the plans of the architect: three
floors, a reading room that faces the park, and space for about ninety thousand books. Mr. Chen asked whether the
budget of 6.2 million would be enough, since prices of steel had risen by eleven per cent since the autumn. After a
long debate it was decided, by nine votes against four, to begin with the ground floor and to ask for further offers
before the summer. The next meeting will take place on 11 April at half past six in the town hall; members who cannot
attend are asked to send their votes by letter.

Dear Sofia,

Thank you for your message, and sorry that I am answering so late. The move took longer than we thought, and for two
weeks we had neither a table nor a connection to the internet. Now the boxes are almost gone, the cat has found her
place on the warm side of the stove, and you must visit us soon. There is a train every hour from the central station;
it takes about fifty minutes, and I can fetch you with the car. Bring walking shoes, because the forest begins right
behind the house.

With love from all of us,
Tomás

User: My program says "index out of range" when I read the last line of a file. What can be wrong?
Assistant: Most likely the loop goes one step too far. If a list has n elements, their indices are 0 to n - 1, so a loop
that runs while i <= n reads one element behind the last one. Write i < n instead, or go through the elements
themselves: for line in lines. If that does not help, look at the line before the error: an empty line at the end of
the file gives an empty list when you split it, and then there is no first word to read.

In geometry, a circle is the set of all points in a plane that have the same distance from a given point. That distance
is the radius r, the circumference is 2 * pi * r, and the area is pi * r^2. Archimedes showed that the ratio of the
circumference to the diameter lies between 223/71 and 22/7 by comparing the circle with polygons of 96 sides. Today more
than a hundred trillion digits of it are known, although forty of them would be enough to compute the size of the
visible universe to within the width of an atom.

The old clock in the hall struck three, and somewhere above them a door closed. "That was the wind," said Margaret, who
did not believe it. Her brother was already on the stairs. He carried the lamp in one hand and the poker in the other,
and the shadow that he threw on the wall was three times as large as he was. At the top he stopped, listened, and began
to laugh. It was only the neighbour's dog, wet and ashamed, who had come in through the pantry and eaten the whole of
the birthday cake.
"""
